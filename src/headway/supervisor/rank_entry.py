"""Set up a rank's process before its program runs: die with the supervisor (PR_SET_PDEATHSIG), reset signal handlers.

Run as a file, with `python -I -S`. This costs about 10 ms, and the multi-threaded supervisor needs no code between fork
and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # the supervisor died before the prctl call
        os._exit(137)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"headway: {command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
