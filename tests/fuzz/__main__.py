"""`python -m tests.fuzz [--seconds N] [--seed S] [--subject NAME] [--atheris]`: the long form.

Each subject gets its share of the time in a process of its own, so that a crash of a decoder is found as well. What a
reader must not do is printed with its input, kept in .cache/fuzz: `--replay FILE --subject NAME` shows it again.
With `--atheris` (pip install atheris) the coverage of our code guides the search; otherwise chance does.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutate import mutations
from tests.fuzz.sealed import SEALED
from tests.fuzz.subjects import SUBJECTS as PLAIN

SUBJECTS = PLAIN | SEALED
KEPT = Path(".cache/fuzz")
SLOW_S = 10.0  # a reader that takes longer for a few kilobytes is as bad as one that crashes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="in all (default 120)")
    parser.add_argument("--seed", type=int, default=None, help="replays the inputs of an earlier run")
    parser.add_argument("--subject", choices=sorted(SUBJECTS), action="append", help="only this one (repeatable)")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage")
    parser.add_argument("--replay", type=Path, help="one input again, with its traceback")
    args = parser.parse_args()
    chosen = args.subject or sorted(SUBJECTS)
    if args.replay:
        SUBJECTS[chosen[0]]().meets(args.replay.read_bytes())
        return 0
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in chosen:
        wrong += in_a_child(name, args.seconds / len(chosen), seed, guided=args.atheris)
    print(f"{wrong} of {len(chosen)} readers did what none may" if wrong else f"{len(chosen)} readers: nothing found")
    return int(bool(wrong))


def in_a_child(name: str, seconds: float, seed: int, *, guided: bool) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = guide(name, seconds, seed) if guided else hammer(name, seconds, seed)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        print(f"{name}: died of {signal.Signals(-code).name}; its input is {KEPT / name}.last", flush=True)
    return int(code != 0)


def hammer(name: str, seconds: float, seed: int) -> int:
    """By chance. The input at hand is in a file before it is read, in case the reader takes the process with it."""
    faulthandler.enable()
    subject, last = SUBJECTS[name](), KEPT / f"{name}.last"
    began, count = time.monotonic(), 0
    for count, body in enumerate(mutations(subject.samples, seed)):
        if time.monotonic() - began > seconds:
            break
        last.write_bytes(body)
        started = time.monotonic()
        try:
            subject.meets(body)
            assert time.monotonic() - started < SLOW_S, f"it took {time.monotonic() - started:.0f} s"
        except (Exception, AssertionError):  # noqa: BLE001  whatever it is, it is what we are looking for
            kept = KEPT / f"{name}-{hashlib.sha256(body).hexdigest()[:12]}"
            kept.write_bytes(body)
            print(f"{name}: input {count} of seed {seed}, kept in {kept}\n{traceback.format_exc()}", flush=True)
            return 1
    print(f"{name}: {count} inputs", flush=True)
    last.unlink(missing_ok=True)
    return 0


def guide(name: str, seconds: float, seed: int) -> int:
    """By coverage of Headway's own modules; libFuzzer keeps what finds something new in .cache/fuzz/NAME."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["headway"]):
        subject = SUBJECTS[name]()
        subject.meets(subject.samples[0])  # lazy imports are instrumented too
    corpus = KEPT / name
    corpus.mkdir(exist_ok=True)
    for number, sample in enumerate(subject.samples):
        (corpus / f"sample-{number}").write_bytes(sample)
    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={SLOW_S:.0f}",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([name, str(corpus), f"-artifact_prefix={KEPT}/{name}-", *options], subject.meets)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
