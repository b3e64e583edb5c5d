"""The supervisor, process 1 on every node: starts the ranks, restarts them, keeps the run folder. Never imports torch.

Started as `python -m headway.runtime.worker --run URL`. Exit codes: 0 done, 143 restart requested, 2 bad input,
anything else failed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the supervisor; return its exit code.

    Stop signals are blocked first: process 1 would otherwise miss one that arrives while modules are being imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    import argparse

    from headway.supervisor.supervisor import run

    parser = argparse.ArgumentParser(prog="python -m headway.runtime.worker", description="Headway's supervisor.")
    parser.add_argument("--run", required=True, metavar="URL", help="the run folder")
    return run(parser.parse_args(arguments).run)


def run_and_exit() -> None:
    """Run `main`, then exit without joining threads: one that waits for a store must not keep process 1 alive."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
