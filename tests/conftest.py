"""What all tests share: where an optional part is not installed, the tests that need it are skipped by name."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

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
        report.longrepr = (str(getattr(collector, "path", collector.nodeid)), 0, f"Skipped: {lacking[1]} is not installed")
    return report
