"""Run docker or podman through its command line (the only access to a daemon) and map its failures to our errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core import command
from headway.core.command import CommandError, ErrorRule, launch_errors, match_rule

COMMAND_TIMEOUT_S = 120.0  # a daemon that has not answered by then is stuck; builds and pulls have no limit
_LAST_LINES = 30
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class EngineError(CommandError):
    """The daemon or its command failed. `output` is its output."""


class NotInstalled(EngineError):
    """The command is not installed on this machine."""


class Unreachable(EngineError):
    """The command is installed, but no daemon responds."""


class AnotherDaemon(EngineError):
    """The command leads to another daemon than the run's."""


class CommandTimeout(Unreachable):
    """The daemon did not respond in time."""


class NotFound(EngineError):
    """The container, image, network or volume does not exist."""


class AlreadyExists(EngineError):
    """The name is already in use."""


class Engine(Protocol):
    """Runs one command and returns its output. Raises EngineError."""

    def __call__(self, argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str: ...


def run(argv: Sequence[str], *, within_s: float | None = COMMAND_TIMEOUT_S) -> str:
    """Run a command. With `within_s=None` there is no time limit, and the command's own progress is shown."""
    if within_s is None:
        with launch_errors(argv[0], not_installed):
            return _run_streaming(argv)
    late = f"`{_display_command(argv)}` did not finish within {within_s:.0f} s"
    return command.run(
        argv,
        within_s=within_s,
        not_installed=not_installed,
        timed_out=lambda: CommandTimeout(late, fix="sudo systemctl restart docker"),
        failed=engine_error,
    )


def daemon_id(engine: Engine, command: str) -> str:
    """Return what tells one daemon from another: its id, or podman's storage folder. Empty if it does not say."""
    field = "{{.Store.GraphRoot}}" if "podman" in command.rpartition("/")[2] else "{{.ID}}"
    try:
        return engine([command, "info", "--format", field]).strip()
    except Unreachable:
        raise
    except EngineError:
        return ""


def not_installed(program: str) -> NotInstalled:
    name = program.rpartition("/")[2]
    package = {"docker": "docker.io", "podman": "podman"}.get(name)
    fix = f"sudo apt-get install {package}" if package else "fix `command` in the target's entry: docker or podman"
    return NotInstalled(f"{program} is not installed", fix=fix)


def engine_error(argv: Sequence[str], output: str) -> EngineError:
    """Map a failed command's output to an error that says what to type."""
    output = _COLOUR.sub("", output).strip()
    known = match_rule(_ERROR_RULES, output, command=argv[0])
    if known is not None:
        return known
    what = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no reason given")
    return EngineError(f"`{_display_command(argv)}` failed: {_strip_colour(what)}", output=output)


# The first match counts.
_ERROR_RULES: tuple[ErrorRule[EngineError], ...] = (
    (
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        Unreachable,
        "this user has no permission to use the Docker daemon",
        'sudo usermod -aG docker "$USER", then log out and in again',
    ),
    (
        r"cannot connect to the docker daemon at (\S+?)\.? ",
        Unreachable,
        "no Docker daemon responds at {0}",
        "sudo systemctl start docker",
    ),
    (
        r"cannot connect to the docker daemon|error during connect|connection refused|cannot connect to podman",
        Unreachable,
        "the daemon of `{command}` does not respond",
        "sudo systemctl start docker",
    ),
    (r"no such (container|network|image|object|volume)", NotFound, "that {0} does not exist", ""),
    (r"(network|container) \S+ not found|no (container) with name", NotFound, "it does not exist", ""),
    (
        r"(?:container )?name \S+ is already in use|network with name \S+ already exists|network (?:name )?\S+ already",
        AlreadyExists,
        "the name is already in use",
        "headway ps",
    ),
    (
        r"no space left on device",
        EngineError,
        "no space left on the disk where Docker stores its images",
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
        "the image is neither on this machine nor in its registry",
        "fix image.base or image.uri; log in first if it is private: docker login HOST",
    ),
    (
        r"(unauthorized|denied: |no basic auth credentials|authentication required)",
        EngineError,
        "the registry requires a login",
        "docker login HOST; for Google's: gcloud auth configure-docker LOCATION-docker.pkg.dev",
    ),
    (
        r"could not find an available.* address pool|no available network|all predefined address pools",
        EngineError,
        "Docker has no free address range for another network",
        "docker network prune",
    ),
    (
        r"invalid mount config for type \"bind\": bind source path does not exist: (.+)",
        EngineError,
        "{0} does not exist on this machine",
        "fix the path in the job file",
    ),
    (
        r"exec: \"?([^\"\s]+)\"?: (?:executable file not found|stat)",
        EngineError,
        "{0} does not exist in the image",
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
