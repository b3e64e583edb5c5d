"""`python -m tests.chaos [--kills N | --seconds N] [--seed S] [--scenario NAME] [--jobs N]`: the long form.

Real runs under the real supervisor, in a folder and on a real S3 server, with 1, 2 and 3 ranks, killed at random until
so many kills are done, then troubled otherwise (signals, damage, full disks, clocks, stores that fail, networks that
are cut, clients that are lost, starts that are doubled), and every write and upload failed in turn. Ends with 1 when
anything was lost. The seed that is printed replays the same choices.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.scenarios import SCENARIOS, Settings, play
from tests.chaos.troubles import TROUBLES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--kills", type=int, default=None, metavar="N", help="how many kills in all (default 200)")
    much.add_argument(
        "--seconds",
        type=float,
        default=None,
        metavar="N",
        help="start no new run after so long, shared by the scenarios",
    )
    parser.add_argument("--seed", type=int, default=None, help="replays the choices of an earlier run")
    parser.add_argument(
        "--from-run", type=int, default=0, metavar="N", help="number of the first run: goes on, or repeats one"
    )
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), action="append", help="only this one (repeatable)")
    parser.add_argument("--trouble", choices=sorted(TROUBLES), default="", help="of the troubles, only this one")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default 2)")
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000)
    kills = args.kills if args.kills is not None else (200 if args.seconds is None else 1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="headway-chaos-"))
    settings = Settings(folder=folder, seed=seed, kills=kills, seconds=args.seconds, jobs=args.jobs, keep=args.keep)
    settings.from_run, settings.trouble = args.from_run, args.trouble
    signal.signal(signal.SIGTERM, lambda *_: _stop(settings))
    print(f"seed {seed}, in {folder}", flush=True)
    return play(settings, args.scenario or sorted(SCENARIOS))


def _stop(settings: Settings) -> None:
    """A driver that is stopped starts nothing more, and leaves nothing behind either."""
    settings.kills = 0
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
