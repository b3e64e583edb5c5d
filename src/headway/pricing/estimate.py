"""How long a job will train, and how that is known: by past runs, else by a count of its arithmetic.

`measured` is said only of the same work on the same device. Everything else is `rough`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from headway.pricing.history import REHEARSAL, PastRun, length_of, remembered, what_of, work_of
from headway.pricing.machines import sustained_tflops

# Counting a job's arithmetic and its pictures from its settings, without building its model. Rough.


TRAINING = 3.0  # times the forward pass: backwards costs twice as much
PICTURES_A_CORE_S = 1500.0  # JPEGs of 224 pixels decoded and cropped by one core: 2,400 measured, less for what follows
TOKENS = 20.0  # of a caption or a sentence, where nothing says otherwise

# Billions of multiply-adds for one picture of 224 × 224, from the papers.
_GMACS = {
    "alexnet": 0.71, "resnet18": 1.82, "resnet34": 3.67, "resnet50": 4.11, "resnet101": 7.83, "resnet152": 11.56,
    "efficientnet_lite0": 0.41, "efficientnet_lite1": 0.63, "efficientnet_lite2": 0.89, "mobilenet_v3": 0.22,
    "vit_b_16": 17.6, "inception_v3": 5.7, "vgg16": 15.5,
}  # fmt: skip


# Layers of both sides, width and inner width of a translation's sizes.
_TRANSFORMERS = {"tiny": (4, 64, 256), "small": (8, 128, 512), "medium": (6, 256, 1024), "base": (12, 512, 2048)}


def flops_per_example(config: Mapping[str, Any]) -> float | None:
    """Of one step's share for one example, forwards and backwards; None where the settings do not tell."""
    forward = _pictures(config) + _words(config)
    return TRAINING * forward if forward else None


def loading_core_s(config: Mapping[str, Any]) -> float:
    """What one example costs a core before the device sees it. Sentences cost next to nothing."""
    if not _pictures(config):
        return 0.0
    sides = 2 if config.get("front") and config.get("back") else 1
    return sides * (_side(config) / 224.0) ** 2 / PICTURES_A_CORE_S


def examples_per_epoch(job: Mapping[str, Any]) -> float | None:
    """Rows that an epoch reads: what the settings draw, or what the data's manifests count."""
    config = dict(job.get("config") or {})
    sources = (job.get("data") or {}).get("train") or ()
    if sources and all(str(source["source"]).startswith("builtin:") for source in sources):
        drawn = [value for key, value in config.items() if key.startswith("train_") and type(value) is int]
        return float(sum(drawn)) or None
    counts = [_rows(source) for source in sources]
    return float(sum(count for count in counts if count is not None)) if counts and None not in counts else None


def _rows(source: Mapping[str, Any]) -> int | None:
    """Of a prepared data set on this machine."""
    split = source.get("split") or "train"
    try:
        manifest = json.loads((Path(str(source["source"])) / "manifest.json").read_text())
        parts = manifest["splits"][split]
        rows = int(parts["rows"] if isinstance(parts, dict) else sum(part["rows"] for part in parts))
    except (OSError, ValueError, KeyError, TypeError):  # remote, not prepared, or of another shape
        return None
    limit = source.get("limit")
    return min(rows, int(limit)) if limit else rows


def _pictures(config: Mapping[str, Any]) -> float:
    side = _side(config)
    names = [str(config[key]) for key in ("encoder", "backbone", "model", "front", "back") if config.get(key)]
    known = sum(_GMACS[_plain(name)] for name in names if _plain(name) in _GMACS)
    own = 0.0
    if "cnn" in names and _number(config, "width"):  # four layers that halve the picture, the last four times as wide
        own = 2.5 * 9 * float(config["width"]) ** 2 * (side / 2) ** 2 / 1e9
    return 2e9 * (known * (side / 224.0) ** 2 + own)


def _side(config: Mapping[str, Any]) -> float:
    return next((float(config[key]) for key in ("picture", "size", "image_size") if _number(config, key)), 224.0)


def _words(config: Mapping[str, Any]) -> float:
    """A decoder's or a Transformer's share: two operations a weight and token."""
    if "subwords" in config and config.get("size") in _TRANSFORMERS:  # what is left out comes from the size
        named = dict(zip(("layers", "dim", "ff"), _TRANSFORMERS[config["size"]], strict=True))
        given = {"layers": _layers(config), "dim": config.get("width"), "ff": config.get("inner")}
        config = {**named, **{key: value for key, value in given.items() if value}}
    width = next((float(config[key]) for key in ("d_model", "dim", "hidden", "embedding") if _number(config, key)), 0.0)
    if not width:
        return 0.0
    layers = _layers(config)
    inner = next((float(config[key]) for key in ("ff", "feed_forward") if _number(config, key)), 4 * width)
    weights = (layers or 1.0) * (4 * width**2 + 2 * width * inner)
    copies = float(config["captions"]) if _number(config, "captions") else 1.0
    return 2.0 * weights * TOKENS * copies


def _layers(config: Mapping[str, Any]) -> float:
    keys = ("layers", "encoder_layers", "decoder_layers")
    return sum(float(config[key]) for key in keys if _number(config, key))


def _number(config: Mapping[str, Any], key: str) -> bool:
    return isinstance(config.get(key), int | float) and not isinstance(config.get(key), bool)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("resnet_", "resnet")


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


def estimate(job: Mapping[str, Any], device: Device, past: Sequence[PastRun] | None = None) -> Estimate | None:
    """The best that can be said; None where nothing is known of this training."""
    past = remembered() if past is None else past
    return _same_work(job, device, past) or _same_recipe(job, device, past) or _counted(job, device)


def _same_work(job: Mapping[str, Any], device: Device, past: Sequence[PastRun]) -> Estimate | None:
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


def _same_recipe(job: Mapping[str, Any], device: Device, past: Sequence[PastRun]) -> Estimate | None:
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
