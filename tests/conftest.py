"""What all tests share: where an optional part is not installed, the tests that need it are skipped by name."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is not a failure: generated examples have no deadline, and may take their time to be made.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What needs root and a daemon has a command of its own, which starts the daemon and sets this.
DAEMONS = {
    "docker": (
        "test_docker.py",
        "test_docker_image.py",
        "test_docker_in_a_bucket.py",
        "test_docker_jupyter.py",
        "test_docker_kills.py",
        "test_docker_old_runs.py",
        "test_docker_rehearse.py",
        "test_docker_serving.py",
        "test_docker_training.py",
    ),
    "kubernetes": (
        "test_cluster_contract.py",
        "test_cluster_examples.py",
        "test_cluster_kills.py",
        "test_cluster_moving.py",
        "test_cluster_notebook.py",
        "test_cluster_old_runs.py",
        "test_cluster_operators.py",
        "test_cluster_training.py",
        "test_cluster_trouble.py",
    ),
    "podman": ("test_podman.py",),
    "slurm": ("test_slurm.py", "test_slurm_kills.py", "test_slurm_old_runs.py"),
    "ssh": (
        "test_moving_around.py",
        "test_ssh_bootstrap.py",
        "test_ssh_container.py",
        "test_ssh_kills.py",
        "test_ssh_nodes.py",
        "test_ssh_old_runs.py",
    ),
}
SHARE_DOCKER = (*DAEMONS["docker"], "test_docker_check.py", "test_moving_around.py", "test_ssh_container.py")
COMMANDS = {
    "docker": "make test-docker",
    "kubernetes": "make test-kubernetes",
    "podman": "make test-docker",
    "slurm": "make test-slurm",
    "ssh": "make test-ssh",
}

# These import nothing heavy themselves, but start something that trains.
TRAINING = (
    "tests/chaos/test_kills.py",
    "tests/cli/test_compare.py",
    "tests/compat/",
    "tests/packaging/test_sources.py::test_a_plan_pins_it",
    "tests/recipes/captioning/test_results.py",
    "tests/recipes/grading/test_score.py",
    "tests/recipes/test_registry.py::test_what_a_recipe_names_exists",
    "tests/training/test_exact.py",
    "tests/training/test_run_by_hand.py",
    "tests/spec/test_templates.py::test_the_script_template_trains",
    "tests/targets/vertex/test_client_kills.py",
    "tests/targets/vertex/test_life.py::test_a_job_that_fails_before_the_supervisor_says_why_in_its_machines_own_words",
    "tests/targets/vertex/test_moving.py",
    "tests/targets/vertex/test_project_pages.py::test_what_is_run_here_first_plans_as_it_is_typed",
    "tests/test_evaluate.py",
)

# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("torch") is None:
        for item in items:
            if item.nodeid.startswith(TRAINING) or item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="torch is not installed"))
    if os.environ.get("HEADWAY_KILLS_EVERY"):  # all of them take as long as they take
        for item in items:
            if item.path.name.endswith("_kills.py"):
                item.add_marker(pytest.mark.timeout(0))
    if os.environ.get("HEADWAY_TEST_DAEMONS"):
        return
    for daemon, files in DAEMONS.items():
        for item in items:
            if item.path.name in files:
                item.add_marker(pytest.mark.skip(reason=f"{COMMANDS[daemon]} runs it"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Side by side, tests of one file stay in one process, and so do all that use the one Docker daemon.

    xdist's own groups (--dist loadgroup) are lost with pytest 9.2: they go by an attribute that it no longer reads.
    """
    if not os.environ.get("HEADWAY_TEST_DAEMONS"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0].rpartition("/")[2]
            return "docker" if file in SHARE_DOCKER else file

    return Together(config, log)
