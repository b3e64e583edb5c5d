"""What all tests share: where an optional part is not installed, the tests that need it are skipped by name."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from headway.packaging import code
from tests.left_behind import SESSION, left_behind
from tests.servers import processes
from tests.waiting import wait_until

# A busy machine is not a failure: generated examples have no deadline, and may take their time to be made.
BUSY: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("development", max_examples=25, **BUSY)
settings.register_profile("ci", max_examples=200, **BUSY)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "development"))

# These need a daemon of their own, most of them root: the command starts it and sets HEADWAY_TEST_DAEMONS.
DAEMONS = {
    "docker": "make test-docker",
    "podman": "make test-docker",
    "kubernetes": "make test-kubernetes",
    "slurm": "make test-slurm",
    "ssh": "make test-ssh",
}

# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Children inherit it. Workers of xdist, and a pytest that a test starts, belong to this session.
STARTED_HERE = SESSION not in os.environ
os.environ.setdefault(SESSION, f"{os.getpid()}-{time.time_ns()}")

MISSING = re.compile(r"ModuleNotFoundError: No module named '(torch|safetensors)'")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A test module that cannot be imported for want of torch is skipped, and said so; any other error stays one."""
    report = yield
    lacking = MISSING.search(str(report.longrepr)) if report.failed else None
    if lacking:
        report.outcome = "skipped"
        where = str(getattr(collector, "path", collector.nodeid))
        report.longrepr = (where, 0, f"Skipped: {lacking[1]} is not installed")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the processes that tests have left behind."""
    if not STARTED_HERE:
        return
    with suppress(AssertionError):
        wait_until(lambda: not left_behind(os.environ[SESSION]), within_s=10.0)  # some are just ending
    for process in left_behind(os.environ[SESSION]):
        terminalreporter.write_line(f"LEFT BEHIND {process}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by marker: without torch, and without the daemon that a test needs."""
    for item in items:
        if getattr(getattr(item, "function", None), "in_short_runs", False):
            item.add_marker("ci")
    if find_spec("torch") is None:
        _skip(items, "torch", "torch is not installed")
    if os.environ.get("HEADWAY_KILLS_EVERY"):  # all of them take as long as they take
        for item in items:
            if item.path.name.endswith("_kills.py"):
                item.add_marker(pytest.mark.timeout(0))
    if not os.environ.get("HEADWAY_TEST_DAEMONS"):
        for daemon, command in DAEMONS.items():
            _skip(items, daemon, f"{command} runs it")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _one_wheel() -> Iterator[None]:
    """Make Headway's own wheel once. Tests have a HEADWAY_HOME of their own, and each would make it again."""
    make, made = code._make_wheel, dict[str, tuple[str, bytes]]()

    def copy(package: Path, files: list[os.DirEntry[str]]) -> tuple[str, str]:
        key = code._fingerprint(files)
        if key not in made:
            name, _ = make(package, files)
            made[key] = name, code.wheel_path(name).read_bytes()
        name, body = made[key]
        path = code.wheel_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return name, hashlib.sha256(body).hexdigest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "_make_wheel", copy)
        yield


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """S3 and Secrets Manager for all tests: each uses keys and names of its own."""
    with processes.moto() as url:
        yield url


@pytest.fixture(scope="session")
def azurite_url() -> Iterator[str]:
    """Azure Blob Storage for all tests."""
    with processes.azurite() as url:
        yield url


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With daemons, tests of one file stay in one process, and so do all that use the one Docker daemon.

    xdist's own groups (--dist loadgroup) are lost with pytest 9.2: they go by an attribute that it no longer reads. The
    controller collects nothing itself, so it knows the files that use the daemon by the name of its fixture.
    """
    if not os.environ.get("HEADWAY_TEST_DAEMONS"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "docker" if "docker_host" in (config.rootpath / file).read_text() else file

    return Together(config, log)
