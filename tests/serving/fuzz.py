"""`python -m tests.serving.fuzz [--recipe NAME] [--examples N] [--seconds S]`: the long form of test_fuzz.

Every recipe's real server, in a process of its own, meets all of schemathesis: the cases at the edges of its own
description (coverage), N good and bad bodies of each operation (fuzzing), chains of calls (stateful), and, for what is
left of the time, whatever chance comes up with. Half of the time at least is for that. What schemathesis found is
printed with the command that sends it again, and the server must be ready, and have failed at nothing, in the end.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import schemathesis

from tests.serving.conftest import b64, png
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PICTURES = ("image", "front", "back")
REFUSED = [400, 401, 404, 405, 413]  # 413: more than is taken, which is a refusal as good as any
# Two checks are ours, below, because no description can say what is theirs to know.
THEIRS = ("positive_data_acceptance", "negative_data_rejection")
CONFIG = f"""
[checks.negative_data_rejection]
expected-statuses = {REFUSED}
"""


def with_pictures(case: Any) -> None:
    """Text where a picture should be becomes one, and tensors get shapes that fit: a description can say neither."""
    if not isinstance(case.body, dict):
        return
    case.body = copy.deepcopy(case.body)  # what was drawn is Hypothesis's own
    pictures = "base64" in str(case.operation.definition.raw)
    instances = case.body.get("instances")
    if pictures and isinstance(instances, list):
        case.body["instances"] = [_picture(each) for each in instances]
    for instance in _dicts(instances):
        instance.update({name: _picture(instance[name]) for name in PICTURES if name in instance})
    for tensor in _dicts(case.body.get("inputs")):
        data, shape = tensor.get("data"), tensor.get("shape")
        if isinstance(data, list) and _numbers(shape):
            tensor["shape"] = [len(data)]
            tensor["data"] = [_picture(each) for each in data] if tensor.get("name") in PICTURES else data


def _picture(found: Any) -> Any:
    """One in place of any text, also of the form {"b64": text}; all else as it is."""
    if isinstance(found, str) and found:
        return b64(png())
    if isinstance(found, dict) and set(found) == {"b64"}:
        return {"b64": _picture(found["b64"])}
    return found


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _numbers(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(type(each) in (int, float) for each in found)


def left_out(case: Any) -> list[Any]:
    """Checks that do not hold: no description can say that a shape fits its data, nor that a form's file is a picture;
    and in a form all is text: there "null" is a word."""
    form = "multipart" in (case.media_type or "")
    found = [schemathesis.checks.positive_data_acceptance] if form or "infer" in case.operation.path else []
    return found + ([schemathesis.checks.negative_data_rejection] if form else [])


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    with_pictures(case)


@schemathesis.check  # type: ignore[untyped-decorator]
def what_fits_is_taken(context: Any, response: Any, case: Any) -> Any:
    theirs = schemathesis.checks.positive_data_acceptance
    # How many subwords a text has, no description can say either.
    too_long = response.status_code == 400 and "subwords" in response.text
    return None if too_long or theirs in left_out(case) else theirs(context, response, case)


@schemathesis.check  # type: ignore[untyped-decorator]
def what_does_not_fit_is_refused(context: Any, response: Any, case: Any) -> Any:
    theirs = schemathesis.checks.negative_data_rejection
    return None if theirs in left_out(case) else theirs(context, response, case)


def main() -> int:
    from tests.serving.test_services import MADE

    parser = argparse.ArgumentParser(prog="python -m tests.serving.fuzz", description=__doc__)
    parser.add_argument("--recipe", choices=sorted(MADE), action="append", help="only this one (repeatable)")
    parser.add_argument("--examples", type=int, default=500, help="of each operation, good and bad (default 500)")
    parser.add_argument("--seconds", type=int, default=600, help="for each recipe (default 600)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    wrong = []
    for recipe in args.recipe or sorted(MADE):
        with tempfile.TemporaryDirectory(prefix="headway-fuzz-") as folder:
            bundle = MADE[recipe](Path(folder) / "bundle")
            if not met(recipe, bundle, args):
                wrong.append(recipe)
    print(f"wrong: {', '.join(wrong)}" if wrong else "nothing found")
    return int(bool(wrong))


def met(recipe: str, bundle: Path, args: argparse.Namespace) -> bool:
    """Whether its server did all that its description says, and goes on."""
    print(f"\n# {recipe}", flush=True)
    end = time.monotonic() + args.seconds
    log = bundle.parent / "log"
    with server(bundle, log) as url:
        common = ("--seed", str(args.seed))
        every = ("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(args.examples))
        good = schemathesis_says("run", url, bundle.parent, *every, *common, "--max-time", str(args.seconds // 2))
        left = max(1, round(end - time.monotonic()))
        good &= schemathesis_says("fuzz", url, bundle.parent, *common, "--max-time", str(left))
        good &= answers(f"{url}/ready")
    failures = [line for line in log.read_text().splitlines() if '"exception"' in line or "Traceback" in line]
    for line in failures[:5]:
        print(line)
    return good and not failures


def schemathesis_says(verb: str, url: str, folder: Path, *words: str) -> bool:
    """Whether it found nothing."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), verb, f"{url}/openapi.json"]
    command += ["--exclude-checks", ",".join(THEIRS), "--request-timeout", "60", "--no-color", *words]
    command += ["--generation-database", "none", "--continue-on-failure", "--suppress-health-check", "all"]
    env = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.serving.fuzz", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, cwd=folder, check=False).returncode == 0  # it keeps a folder of its own


@contextmanager
def server(bundle: Path, log: Path) -> Iterator[str]:
    """`headway serve`, as people start it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headway", "serve", str(bundle), "--port", str(port), "--max-body", "100KB"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(f"{url}/ready") or process.poll() is not None, log.read_text)
        yield url
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main())
