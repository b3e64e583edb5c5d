"""The promises of a provider of machines: its tests inherit `ProviderContract` and name a machine."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pytest

from headway.core.errors import BadInput, BadJob
from headway.core.types import RentalCommands
from headway.planning import plan
from headway.plugins import PROVIDERS
from headway.spec import Job, TargetEntry


class ProviderContract(ABC):
    """Subclasses give `name`, as in `provider:` of an ssh target, and `machine`. Nothing is rented."""

    name: str

    @abstractmethod
    def machine(self) -> Mapping[str, Any]:
        """Return the `machine` of a target that is valid."""

    def wrong_machine(self) -> Mapping[str, Any]:
        """Return a `machine` that must be refused. By default it has a key that no provider knows."""
        return {"no-such-key": 1}

    def commands(self, machine: Mapping[str, Any]) -> RentalCommands:
        made: RentalCommands = PROVIDERS[self.name].load()().commands(machine)
        return made

    def test_its_commands_are_the_same_each_time(self) -> None:
        assert self.commands(self.machine()) == self.commands(dict(self.machine()))

    def test_the_machine_can_be_found_by_the_run_and_returned_by_its_id(self) -> None:
        commands = self.commands(self.machine())
        assert "{run}" in commands.up, "after a crash nobody could find a machine without a label"
        assert "{id}" in commands.down
        assert "{run}" in commands.list or "{id}" in commands.list
        assert commands.price is None or commands.price >= 0

    def test_a_wrong_machine_is_refused_with_a_fix(self) -> None:
        with pytest.raises(BadInput) as raised:
            self.commands(self.wrong_machine())
        assert raised.value.problem.fix

    def test_a_job_is_planned_with_it(self, tmp_path: Any) -> None:
        if shutil.which("ssh") is None:
            pytest.skip("ssh is not installed")
        (tmp_path / "train.py").write_text("print('trained')\n")
        entry = TargetEntry(kind="ssh", options={"provider": self.name, "machine": dict(self.machine())})
        job = Job(name="job", script="train.py", root=str(tmp_path), targets={"gpu": entry})
        try:
            options = plan(job, on="gpu").options
        except BadJob as error:
            raise AssertionError(str(error)) from None
        assert options["up"] == self.commands(self.machine()).up
