"""Fetch the planned code and the planned Headway into a pod; then exec the given module, if there is one.

`python -m headway.targets.kubernetes.entry --from OUTPUTS/code --code SHA --wheel NAME --wheel-sha256 SHA -- MODULE …`
As process 1, in an image that has Headway in any version: the module runs from the planned one. A restarted container
finds both on disk. Without a module, as an init container of the supervisor's image, which also brings Headway:
`… --from OUTPUTS/code --code SHA --copy /runtime=/headway/runtime --copy /wheel=/headway/wheel`
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from headway.core.errors import BAD_INPUT, WORKER_RESTART, BadPlan, HeadwayError, Transient
from headway.core.retry import NO_LIMIT, RetryPolicy, retry

FETCH_TIMEOUT_S = 300.0  # retry limit for an unreachable store when a pod starts
CODE, WHEEL, SECRETS = "/headway/code", "/headway/wheel", "HEADWAY_SECRETS_DIR"
COMPLETE_MARKER = ".headway-sha256"  # written last: a folder that has it is complete


def main(arguments: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _on_sigterm)  # without a handler, process 1 ignores it
    args = _parse_arguments(arguments)
    inherited = dict(os.environ)
    use_secrets(os.environ)  # may include a bucket's keys; the exec'd module reads them again by itself
    try:
        _fetch_code(Path(args.code_dir), args.code, lambda: _read_code(args))
        if args.wheel:
            _fetch_code(Path(args.wheel_dir), args.wheel_sha256, lambda: _read_wheel(args))
        for source, _, to in (pair.partition("=") for pair in args.copy):
            _copy_content(Path(source), Path(to))
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr, flush=True)  # noqa: T201  there is no log to write it to yet
        return WORKER_RESTART if isinstance(error, Transient) else BAD_INPUT
    if not args.words:
        return 0
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # stays pending until the exec'd module unblocks it
    return os.execve(sys.executable, [sys.executable, "-m", *args.words], inherited)


def _copy_content(source: Path, to: Path) -> None:
    """Copy what is in a folder, but not the folder's mode: a volume belongs to root."""
    for child in sorted(source.iterdir()):
        if child.is_dir():
            shutil.copytree(child, to / child.name, dirs_exist_ok=True)
        else:
            shutil.copy2(child, to / child.name)


def use_secrets(env: MutableMapping[str, str]) -> None:
    """Load the mounted secrets into the environment: one file per variable."""
    folder = env.get(SECRETS)
    for path in sorted(Path(folder).iterdir()) if folder and Path(folder).is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            env[path.name] = path.read_text(encoding="utf-8")


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headway.targets.kubernetes.entry")
    parser.add_argument("--from", required=True, dest="source", metavar="URL")
    parser.add_argument("--code", required=True, metavar="SHA256")
    parser.add_argument("--wheel", metavar="NAME")
    parser.add_argument("--wheel-sha256", metavar="SHA256")
    parser.add_argument("--copy", action="append", default=[], metavar="FROM=TO")
    parser.add_argument("--code-dir", default=CODE)
    parser.add_argument("--wheel-dir", default=WHEEL)
    parser.add_argument("words", nargs="*", metavar="-- MODULE ARGUMENT")
    return parser.parse_args(arguments)


def _on_sigterm(number: int, frame: object) -> None:
    os._exit(WORKER_RESTART)


def _fetch_code(folder: Path, sha256: str, work: Callable[[], None]) -> None:
    """Run `work` unless the folder is already complete; retry transient errors with back-off for PATIENCE_S."""
    mark = folder / COMPLETE_MARKER
    if mark.is_file() and mark.read_text() == sha256:
        return
    policy = RetryPolicy(tries=NO_LIMIT, total_s=FETCH_TIMEOUT_S, first_pause_s=1.0, longest_pause_s=30.0)
    retry(work, policy, on_failure=_report_retry)
    mark.write_text(sha256)


def _report_retry(error: Exception) -> None:
    print(f"headway: trying again: {error}", file=sys.stderr, flush=True)  # noqa: T201  ditto


def _read_code(args: argparse.Namespace) -> None:
    from headway.packaging.code import unpack
    from headway.storage import open_store
    from headway.targets.local.processes import map_os_errors

    body = open_store(args.source).read(f"{args.code}.tar.gz")
    with map_os_errors(Path(args.code_dir)), tempfile.NamedTemporaryFile(suffix=".tar.gz") as copy:
        copy.write(body)
        copy.flush()
        unpack(Path(copy.name), args.code, Path(args.code_dir))


def _read_wheel(args: argparse.Namespace) -> None:
    from headway.storage import open_store
    from headway.targets.local.processes import map_os_errors

    body = open_store(args.source).read(args.wheel)
    if hashlib.sha256(body).hexdigest() != args.wheel_sha256:
        raise BadPlan(f"{args.wheel} is not the one that was planned", where=args.source, fix="headway plan")
    with map_os_errors(Path(args.wheel_dir)), zipfile.ZipFile(io.BytesIO(body)) as content:
        content.extractall(args.wheel_dir)


if __name__ == "__main__":
    sys.exit(main())
