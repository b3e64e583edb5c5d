"""The example of docs/writing-a-target.md: its text is imported as a module and held to the whole contract."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from headway import targets
from headway.core.types import State, Target
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.plugins import TARGETS, TargetPlugin
from headway.spec import Job
from headway.targets.fake import FakeBehaviour
from headway.targets.local.processes import Process, processes_of
from tests.contract.suite import WAITS, TargetContract
from tests.targets import test_local
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/writing-a-target.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the example into a package of its own and register it. Nothing else is touched."""
    folder = tmp_path_factory.mktemp("package")
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    (folder / "nice_headway").mkdir()
    (folder / "nice_headway/__init__.py").write_text("")
    (folder / "nice_headway/target.py").write_text(block[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        home = "nice_headway.target"
        entry = TargetPlugin(
            f"{home}:NiceTarget", options=f"{home}:Options", extra=None, summary="this machine, low priority"
        )
        patch.setitem(TARGETS, "nice", entry)
        yield
    for name in [name for name in sys.modules if name.startswith("nice_headway")]:
        del sys.modules[name]


def processes(hold: RunHandle) -> list[Process]:
    return processes_of(hold.url, target="nice", leader=test_local.supervisor(hold))


class TestDocumented(TargetContract):
    kind = "nice"

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        target = targets.build("nice", {})
        yield target
        assert [handle for handle in target.list_runs() if handle.url.startswith(str(tmp_path))] == []

    def half_gone(self, hold: RunHandle) -> None:
        rank = next(each for each in processes(hold) if b"play.py" in Path(f"/proc/{each.pid}/cmdline").read_bytes())
        rank.send(signal.SIGSTOP)  # a SIGTERM cannot end it any more
        test_local.supervisor(hold).send(signal.SIGKILL)

    def lost_host(self, hold: RunHandle) -> AbstractContextManager[None]:
        return test_local.lose_host(lambda: processes(hold))

    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> AbstractContextManager[None]:
        return test_local.without_pid_file(monkeypatch)

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)

    def test_its_ranks_run_at_the_niceness_of_its_option(
        self, start: Callable[..., RunHandle], plan_of: Callable[..., Plan]
    ) -> None:
        hold = self.running(start(WAITS))
        assert {os.getpriority(os.PRIO_PROCESS, each.pid) for each in processes(hold)} == {10}
        assert "runs at niceness 10" in plan_of(FakeBehaviour()).notes


def test_a_job_file_names_it_and_its_options_are_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    file = tmp_path / "headway.yaml"
    file.write_text("name: job\nscript: train.py\ntargets: {quiet: {kind: nice, niceness: 19}}\n")
    assert targets.make(Job.load(file), "quiet").options.niceness == 19  # type: ignore[attr-defined]
    file.write_text("name: job\nscript: train.py\ntargets: {quiet: {kind: nice, niceness: 20}}\n")
    with pytest.raises(Exception, match="niceness"):
        Job.load(file)


def test_the_command_line_plans_and_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.cli import main

    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / "headway.yaml").write_text("name: job\nscript: train.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    assert main(["plan", "--on", "nice"]) == 0
    assert "runs at niceness 10" in capsys.readouterr().out
    assert main(["run", "--on", "nice", "--yes"]) == 0
    assert "trained" in capsys.readouterr().out
    assert main(["ps", "--json"]) == 0
    assert State.FINISHED.value in capsys.readouterr().out
    wait_until(lambda: main(["gc", "--on", "nice"]) == 0, "nothing is left")
