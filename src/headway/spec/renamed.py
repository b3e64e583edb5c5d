"""Former spellings of options. Headway refuses job files that use one, and translates records that use one.

A dataclass of options lists them in one table, `RENAMED`, which serves both:

    RENAMED: ClassVar[Mapping[str, FormerKey]] = {"batch": Renamed("batch_size")}

`headway.spec.validate` reports them in job files and overrides; `headway.spec.loading.from_plain` translates them in
plans and bundles, which keep their bytes, and with them their hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class FormerKey(Protocol):
    """A former spelling or meaning of an option."""

    @property
    def new_name(self) -> str:
        """The option that replaces it."""

    def applies(self, value: Any) -> bool:
        """Return whether a key with this value has its former meaning."""

    def translate(self, value: Any) -> dict[str, Any]:
        """Return the current options that have the same effect."""

    def change(self, value: Any) -> str:
        """Describe the change, as a text that follows the key's path in a message."""

    def instead(self, value: Any) -> str:
        """Return what to write instead; empty: the options that `translate` returns."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """An option with a new name or, if `values` has any, with new values."""

    new_name: str
    values: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)  # former value -> current options

    def applies(self, value: Any) -> bool:
        return not self.values or any(_same(value, former) for former in self.values)

    def translate(self, value: Any) -> dict[str, Any]:
        for former, today in self.values.items():
            if _same(value, former):
                return dict(today)
        return {self.new_name: value}

    def change(self, value: Any) -> str:
        listed = self.values and self.applies(value)
        return f" is now {written(self.translate(value)) if listed else self.new_name}"

    def instead(self, value: Any) -> str:
        return ""


def _same(value: Any, former: Any) -> bool:
    return type(value) is type(former) and bool(value == former)  # True is not 1


@dataclass(frozen=True, slots=True)
class ShareOfSteps:
    """An option that was a share of the training steps and is a number of steps now.

    The total is known only during training, so a recorded share is kept, as an option that job files do not have.
    """

    new_name: str
    kept: str  # the option of records
    default: float  # the share that the current default corresponds to

    def applies(self, value: Any) -> bool:
        return isinstance(value, float) and 0 <= value < 1

    def translate(self, value: Any) -> dict[str, Any]:
        if not value:
            return {self.new_name: 0}
        return {self.new_name: None} if value == self.default else {self.new_name: None, self.kept: value}

    def change(self, value: Any) -> str:
        return f": {self.new_name} is a number of steps, no longer a share of them"

    def instead(self, value: Any) -> str:
        if value == self.default:
            return f"remove it: {value:g} of the steps is the default"
        if not value:
            return ""
        steps = f"{self.new_name}: {round(2000 * value)} for {value:g} of 2,000 steps"
        return f"write the number of steps, such as {steps} (epochs × samples / batch_size)"


def renamed_in(cls: Any) -> Mapping[str, FormerKey]:
    """Return the table of a dataclass of options; empty if it has none."""
    table: Mapping[str, FormerKey] = getattr(cls, "RENAMED", {})
    return table


def translate_former(cls: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Translate recorded options to the current names and values of `cls`."""
    table, found = renamed_in(cls), dict[str, Any]()
    for name, value in plain.items():
        former = table.get(name)
        found.update(former.translate(value) if former and former.applies(value) else {name: value})
    return found


def current_config(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a recorded job with current names. A script's config is returned unchanged."""
    from headway.plugins import RECIPES

    config, recipe = dict(job.get("config") or {}), RECIPES.get(str(job.get("recipe")))
    return translate_former(recipe.load_config(), config) if recipe else config


def written(options: Mapping[str, Any]) -> str:
    """Format options as in a job file."""
    return ", ".join(f"{name}: {_text(value)}" for name, value in options.items())


def overrides(options: Mapping[str, Any], under: str) -> str:
    """Format options as `--set` arguments of the command line."""
    return " ".join(f"--set {under}.{name}={_text(value)}" for name, value in options.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
