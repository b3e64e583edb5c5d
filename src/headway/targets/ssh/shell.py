"""The shell that runs the user's `up`, `list` and `down`: one in which a pipe fails when any part of it does."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from shutil import which

_HIDES = re.compile(r"(\|\||;|\n)\s*(true|:|exit\s+0|/bin/true|/usr/bin/true)\s*([;)}\n]|$)")


@cache
def words() -> tuple[str, ...]:
    """bash in POSIX mode with pipefail; without bash, sh, with pipefail if it knows it."""
    bash = which("bash")
    if bash is not None:
        return (bash, "--posix", "-o", "pipefail", "-c")
    knows = subprocess.run(["/bin/sh", "-o", "pipefail", "-c", ":"], capture_output=True).returncode == 0
    return ("/bin/sh", "-o", "pipefail", "-c") if knows else ("/bin/sh", "-c")


def hides_failures(command: str) -> str:
    """Why this command may end with 0 though a part of it has failed; empty where nothing speaks for that."""
    found = _HIDES.search(command)
    if found is not None:
        return f"`{found[0].strip()}` hides its failures"
    if "|" in command and "pipefail" not in words():
        return "no shell here fails when a part of a pipe does: install bash"
    return ""
