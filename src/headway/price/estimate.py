"""How long a job will train, and how that is known: by past runs, else by a count of its arithmetic.

`measured` is said only of the same work on the same device. Everything else is `rough`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.price.devices import sustained_tflops
from headway.price.experience import REHEARSAL, Experience, length_of, remembered, what_of, work_of
from headway.price.flops import examples_per_epoch, flops_per_example, loading_core_s

MEASURED, ROUGH = "measured", "rough"
FEEDING = 8  # cores beside an accelerator, on the machines that are usual for it
START_S, STEP_S = 60.0, 0.01  # what a start and a step take besides arithmetic: small models take little else


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    hours: float
    basis: str  # measured or rough
    how: str  # in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What trains on each node."""

    kind: str | None  # None: the CPU
    count: int = 1  # accelerators, or cores
    nodes: int = 1

    @property
    def label(self) -> str:
        return f"{self.kind or 'cpu'}:{self.count}"

    @property
    def cores(self) -> int:
        """That read and prepare data, on all nodes."""
        return (self.count if self.kind is None else FEEDING * self.count) * self.nodes

    @property
    def tflops(self) -> float | None:
        one = sustained_tflops(self.kind, self.count, cpus=self.count)
        return None if one is None else one * self.nodes**0.9

    @classmethod
    def of(cls, label: str, nodes: int) -> Device:
        kind, _, count = label.partition(":")
        return cls(kind=None if kind == "cpu" else kind, count=int(count or 1), nodes=nodes)


def device_of(job: Mapping[str, Any], kind: str, cpus: int | None = None) -> Device:
    """What a job trains on. On this very machine an accelerator that is not here is the CPU."""
    resources = job["resources"]
    asked, nodes = resources.get("accelerator"), int(resources.get("nodes") or 1)
    here = kind in ("local", "docker") and not os.path.exists("/dev/nvidiactl")
    if asked and not here:
        name, _, count = str(asked).partition(":") if isinstance(asked, str) else (asked["kind"], "", asked["count"])
        return Device(kind=name, count=int(count or 1), nodes=nodes)
    return Device(kind=None, count=cpus or resources.get("cpus") or os.cpu_count() or 1, nodes=nodes)


def estimate(job: Mapping[str, Any], device: Device, past: Sequence[Experience] | None = None) -> Estimate | None:
    """The best that can be said; None where nothing is known of this training."""
    past = remembered() if past is None else past
    return _same_work(job, device, past) or _same_recipe(job, device, past) or _counted(job, device)


def _same_work(job: Mapping[str, Any], device: Device, past: Sequence[Experience]) -> Estimate | None:
    work, length = work_of(job), length_of(job)
    same = [one for one in past if one.work == work]
    here = [one for one in same if (one.device, one.nodes) == (device.label, device.nodes)]
    runs = [one for one in here if one.basis != REHEARSAL]
    if runs or here:
        chosen = (runs or here)[-5:]
        hours = median(one.seconds / one.length for one in chosen) * length / 3600
        if runs:
            return Estimate(hours=hours, basis=MEASURED, how=f"{len(chosen)} run(s) of this job on {device.label}")
        return Estimate(hours=hours, basis=ROUGH, how="the rehearsal's rate, with batches of 2")
    for one in reversed(same):
        ratio = _ratio(Device.of(one.device, one.nodes), device)
        if ratio is not None:
            hours = max(_floor(job), one.seconds / one.length * length * ratio / 3600)
            what = "a rehearsal" if one.basis == REHEARSAL else "a run"
            return Estimate(hours=hours, basis=ROUGH, how=f"{what} of this job on {one.device}, by the devices' speeds")
    return None


def _same_recipe(job: Mapping[str, Any], device: Device, past: Sequence[Experience]) -> Estimate | None:
    """Other settings or data: by the number of examples, and by the arithmetic of each."""
    total = _examples(job)
    if total is None or not job.get("recipe"):
        return None
    for one in reversed(past):
        if one.what != what_of(job) or not one.examples or one.basis == REHEARSAL:
            continue
        ratio = _ratio(Device.of(one.device, one.nodes), device)
        if ratio is not None:
            hours = max(_floor(job), one.seconds / one.examples * total * ratio / 3600)
            return Estimate(hours=hours, basis=ROUGH, how=f"another {what_of(job)} run on {one.device}")
    return None


def _counted(job: Mapping[str, Any], device: Device) -> Estimate | None:
    config = dict(job.get("config") or {})
    each, total, speed = flops_per_example(config), _examples(job), device.tflops
    if not each or not total or not speed:
        return None
    computing, loading = each * total / (speed * 1e12), loading_core_s(config) * total / device.cores
    # A GPU computes while cores read ahead: the slower of the two counts. Where there is none, cores do both.
    seconds = computing + loading if device.kind is None else max(computing, loading)
    slower = "its pictures" if device.kind is not None and loading > computing else "the model's arithmetic"
    return Estimate(hours=_floor(job) + seconds / 3600, basis=ROUGH, how=f"a count of {slower}")


def _floor(job: Mapping[str, Any]) -> float:
    """Hours that go by however fast the device is."""
    config, total = dict(job.get("config") or {}), _examples(job)
    batch = config.get("batch") or config.get("batch_size")
    steps = total / batch if total and isinstance(batch, int | float) and batch > 0 else 0.0
    return (START_S + steps * STEP_S) / 3600


def _examples(job: Mapping[str, Any]) -> float | None:
    epoch = examples_per_epoch(job)
    return None if epoch is None else epoch * length_of(job)


def _ratio(known: Device, wanted: Device) -> float | None:
    """How much longer the wanted one takes."""
    before, now = known.tflops, wanted.tflops
    return before / now if before and now else None
