"""Run docker or podman through its command line (the only access to a daemon) and map its failures to our errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.errors import TargetError

COMMAND_TIMEOUT_S = 120.0  # a daemon that has not answered by then is stuck; builds and pulls have no limit
_LAST_LINES = 30
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class EngineError(TargetError):
    """The daemon or its command failed. `output` is its output."""

    def __init__(self, what: str, *, output: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.output = output


class NotInstalled(EngineError):
    """The command is not installed on this machine."""


class Unreachable(EngineError):
    """The command is installed but no daemon answers."""


class CommandTimeout(Unreachable):
    """The daemon has not answered in time."""


class NotFound(EngineError):
    """The container, image, network or volume does not exist."""


class AlreadyExists(EngineError):
    """The name is taken."""


class Engine(Protocol):
    """Runs one command and returns its output. Raises EngineError."""

    def __call__(self, argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str: ...


def run(argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str:
    """Run a command. With `within_s=None` there is no time limit, and the command's own progress is shown."""
    try:
        if within_s is None:
            return _run_streaming(argv)
        process = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=within_s
        )
    except FileNotFoundError:
        raise not_installed(argv[0]) from None
    except PermissionError:
        raise NotInstalled(f"{argv[0]} cannot be run by this user", fix=f"ls -l {argv[0]}") from None
    except subprocess.TimeoutExpired:
        what = f"`{_display_command(argv)}` has not been answered for {within_s:.0f} s"
        raise CommandTimeout(what, fix="sudo systemctl restart docker") from None
    if process.returncode:
        raise engine_error(argv, process.stderr or process.stdout)
    return process.stdout


def not_installed(command: str) -> NotInstalled:
    name = command.rpartition("/")[2]
    package = {"docker": "docker.io", "podman": "podman"}.get(name)
    fix = f"sudo apt-get install {package}" if package else "mend `command` in the target's entry: docker or podman"
    return NotInstalled(f"{command} is not installed", fix=fix)


def engine_error(argv: Sequence[str], output: str) -> EngineError:
    """Map a failed command's output to an error that says what to type."""
    output = _COLOUR.sub("", output).strip()
    for pattern, kind, what, fix in _ERROR_RULES:
        match = re.search(pattern, output, re.IGNORECASE)
        if match:
            return kind(what.format(*match.groups(), command=argv[0]), output=output, fix=fix)
    what = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it gave no reason")
    return EngineError(f"`{_display_command(argv)}` failed: {_strip_colour(what)}", output=output)


# (pattern, error class, what happened, fix). The first match counts.
_ERROR_RULES: tuple[tuple[str, type[EngineError], str, str], ...] = (
    (
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        Unreachable,
        "this user may not talk to the Docker daemon",
        'sudo usermod -aG docker "$USER", then log out and in again',
    ),
    (
        r"cannot connect to the docker daemon at (\S+?)\.? ",
        Unreachable,
        "no Docker daemon answers at {0}",
        "sudo systemctl start docker",
    ),
    (
        r"cannot connect to the docker daemon|error during connect|connection refused|cannot connect to podman",
        Unreachable,
        "the daemon behind `{command}` does not answer",
        "sudo systemctl start docker",
    ),
    (r"no such (container|network|image|object|volume)", NotFound, "there is no such {0}", ""),
    (r"(network|container) \S+ not found|no (container) with name", NotFound, "it is not there", ""),
    (
        r"(?:container )?name \S+ is already in use|network with name \S+ already exists|network (?:name )?\S+ already",
        AlreadyExists,
        "something else has that name already",
        "headway ps",
    ),
    (
        r"no space left on device",
        EngineError,
        "no space left where Docker keeps its images",
        "docker system df, then docker system prune",
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        EngineError,
        "containers cannot use the GPUs of this machine",
        "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure && sudo systemctl restart docker",
    ),
    (
        r"pull access denied for ([^\s,]+)|manifest for (\S+) not found|(manifest unknown)",
        EngineError,
        "the image is neither here nor where its name says",
        "mend image.base or image.uri; log in first if it is private: docker login HOST",
    ),
    (
        r"(unauthorized|denied: |no basic auth credentials|authentication required)",
        EngineError,
        "the registry wants to know who you are",
        "docker login HOST; for Google's: gcloud auth configure-docker LOCATION-docker.pkg.dev",
    ),
    (
        r"could not find an available.* address pool|no available network|all predefined address pools",
        EngineError,
        "there is no room for another network",
        "docker network prune",
    ),
    (
        r"invalid mount config for type \"bind\": bind source path does not exist: (.+)",
        EngineError,
        "there is no {0} on this machine",
        "fix the path in the job file",
    ),
    (
        r"exec: \"?([^\"\s]+)\"?: (?:executable file not found|stat)",
        EngineError,
        "there is no {0} in the image",
        "name the interpreter inside the image: python: … in the target's entry",
    ),
)


def _run_streaming(argv: Sequence[str], print_line: Callable[[str], None] | None = None) -> str:
    """Run it with its progress on standard error if that is a terminal; keep the last lines for an error message."""
    print_line = print_line or _print_to_stderr
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            print_line(line)
    lines = "".join(last)
    if process.returncode:
        error = engine_error(argv, lines)
        raise type(error)(f"{error.problem.what}\n{_tail(lines)}", output=lines, fix=error.problem.fix)
    return lines


def _print_to_stderr(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(line)


def _tail(output: str) -> str:
    lines = [line.rstrip() for line in _COLOUR.sub("", output).splitlines() if line.strip()]
    return "\n".join(f"    | {line}" for line in lines[-8:])


def _display_command(argv: Sequence[str]) -> str:
    words = [word for word in argv if not word.startswith("-")]
    return " ".join(words[:3])[:80]


def _strip_colour(line: str) -> str:
    return re.sub(r"^(error response from daemon|error|docker): ", "", line.strip(), flags=re.IGNORECASE)[:400]
