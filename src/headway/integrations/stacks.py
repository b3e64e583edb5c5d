"""Let the supervisor ask a rank, and the processes that it forks, for their Python stacks at any moment.

`faulthandler` writes them in a signal handler in C: also while the program waits in C code. Standard library only.
"""

import os
from typing import Any

STACK_SIGNAL = 41  # a real-time signal: no program uses it by chance, and system calls are restarted after it
STACKS_FILE = "HEADWAY_STACKS"  # the file that the stacks are appended to


def register(env: Any = None) -> None:
    """Write the stacks of all threads to the supervisor's file at each STACK_SIGNAL."""
    path = (os.environ if env is None else env).get(STACKS_FILE)
    if not path:
        return
    import faulthandler

    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # not this machine's file: another container, or the supervisor is gone
        return
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
