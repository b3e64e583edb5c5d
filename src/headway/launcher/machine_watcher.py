"""The watcher of a rented machine: a background process that mirrors a run's outputs and takes it down at its end.

It runs on the client's machine and outlives the terminal. It is started before the machine is rented: if the client
dies before it has handed over, the watcher gives back whatever was requested.
Run as `python -m headway.launcher.machine_watcher URL`; logs to guardian.log beside the run.
"""

from __future__ import annotations

import math
import signal
import sys
import time

from headway.core.errors import HeadwayError, TargetError, UnknownRun
from headway.core.retry import NO_LIMIT, Backoff, RetryPolicy, retry, wait_until
from headway.core.types import Receipt
from headway.launcher import lifecycle
from headway.rundir import teardown
from headway.rundir.status import local_dir
from headway.rundir.submission import utc_now
from headway.targets.local import processes
from headway.targets.ssh.options import KIND
from headway.targets.ssh.rental import STARTED, Records

FIRST_POLL_S, LONGEST_POLL_S = 2.0, 15.0  # poll interval
HANDOVER_POLL_S = 0.2
UNNAMED_S = 1800.0  # for a machine that a failed `up` did not name to be listed after all
RETRY_S, LONGEST_RETRY_S = 15.0, 600.0  # back-off after a failure: the machine is billed, so it never gives up


class _NoMachineKnown(HeadwayError):
    """`up` failed without naming a machine, and none has been listed for UNNAMED_S: a person must look."""


def watch(url: str) -> int:
    """Wait for the hand-over, then poll the run until it has been taken down."""
    began = time.monotonic()
    wait_until(lambda: not processes.is_starting(local_dir(url, KIND)), HANDOVER_POLL_S)
    rented = Records().read(url) is not None
    policy = RetryPolicy(tries=NO_LIMIT, total_s=math.inf, first_pause_s=RETRY_S, longest_pause_s=LONGEST_RETRY_S)

    def ended() -> bool:
        return retry(lambda: _poll_once(url, rented=rented, began=began), policy, on=HeadwayError,
                     unless=(UnknownRun, _NoMachineKnown),
                     on_failure=lambda error: _log(str(error)))  # fmt: skip

    try:
        wait_until(ended, Backoff(FIRST_POLL_S, LONGEST_POLL_S, factor=1.2))
    except UnknownRun:
        pass  # its folder was removed by a launcher that took everything down
    except _NoMachineKnown as error:
        _log(str(error))
    return 0


def _poll_once(url: str, *, rented: bool, began: float) -> bool:
    """Poll once, and take the run down if it has ended. Raises TargetError while something is left behind."""
    run = lifecycle.open_run(url, say=_log)
    rental = Records().read(url)
    if rental is None and (rented or teardown.complete_receipt(run.folder) is not None):
        return True  # taken down by another process; or its rental record was removed by hand
    if rental is not None and rental.state != STARTED:
        _log(f"the client has exited, and {run.run} was never started: releasing its machine")
        receipt = run.down()
        known = Records().read(url)
        if receipt.left and known is not None and not known.ids and time.monotonic() - began > UNNAMED_S:
            what = f"no machine of {run.run} is known after {UNNAMED_S / 60:.0f} minutes: not tried any more"
            raise _NoMachineKnown(what, fix=f"look at your provider; then: rm -r {Records().place(url)}")
        return _require_nothing_left(receipt)
    outcome = run.outcome()
    if not outcome.status.state.ended or outcome.receipt is None:
        return False
    done = _require_nothing_left(outcome.receipt)
    if Records().read(url) is not None:  # the receipt was of an earlier attempt
        done = _require_nothing_left(run.down())
    _log(f"{run.run} {outcome.status.state.value}: removed")
    return done


def _require_nothing_left(receipt: Receipt) -> bool:
    if receipt.left:
        raise TargetError(f"not removed, will be retried: {', '.join(receipt.left)}")
    return True


def _log(text: str) -> None:
    sys.stdout.write(f"{utc_now()} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(watch(sys.argv[1]))
