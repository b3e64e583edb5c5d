"""A job as the file that would give it: what differs from the defaults, durations and sizes as people type them."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import yaml

from headway.recipes.registry import RECIPES
from headway.spec import Accelerator, Cadence, Job, TargetEntry, to_plain
from headway.spec.kinds import Key, keys_of, union_members, unmarked
from headway.spec.marks import forms
from headway.spec.units import accelerator_text, cadence_text, duration_text, size_text


def as_job_file(job: Job) -> str:
    """Loading it gives the same job again."""
    typed = _typed(job)
    config = _config(job)
    typed.pop("config", None)
    if config:
        typed["config"] = config
    if typed.get("targets") == {"local": {"kind": "local"}}:
        del typed["targets"]  # every job has it
    order = sorted(typed, key=lambda name: list(keys_of(Job)).index(name))
    text: str = yaml.safe_dump({name: typed[name] for name in order}, sort_keys=False, allow_unicode=True)
    return text


def _config(job: Job) -> dict[str, Any]:
    """The settings that are not the recipe's defaults."""
    settings = dict(to_plain(job.config))
    if job.recipe not in RECIPES:
        return settings
    defaults = to_plain(RECIPES[job.recipe].load_config()())
    return {name: value for name, value in settings.items() if name not in defaults or defaults[name] != value}


def _typed(value: Any) -> dict[str, Any]:
    """A dataclass as the mapping one would write for it."""
    written = {}
    for key in keys_of(type(value)).values():
        member = getattr(value, key.field.name)
        if key.required or member != key.default():
            written[key.name] = _value(member, key)
    return written


def _value(value: Any, key: Key) -> Any:
    if isinstance(value, Accelerator):
        return accelerator_text(value)
    if isinstance(value, Cadence):
        return cadence_text(value)
    if isinstance(value, TargetEntry):
        given = {name: option for name, option in to_plain(value.options).items() if option is not None}
        return {"kind": value.kind, **given}
    if is_dataclass(value):
        return _typed(value)
    if isinstance(value, tuple):
        return [_value(item, key) for item in value]
    if isinstance(value, dict):
        return {name: _value(item, key) for name, item in value.items()}
    marked = [form for member in union_members(key.type) for form in forms(unmarked(member)[1])]
    if "duration" in marked:
        return duration_text(value)
    return size_text(value) if "size" in marked else to_plain(value)
