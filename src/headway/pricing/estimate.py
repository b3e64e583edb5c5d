"""Estimate how long a job will train: from past runs, else by counting its arithmetic from its settings.

An estimate is `measured` only for the same work on the same device. Everything else is `rough`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from headway.core.platform import state_dir
from headway.core.program import program_text
from headway.plugins import RECIPES, plugin_of
from headway.rundir.layout import RunFolder
from headway.spec.renamed import current_config

# History of past runs and rehearsals, from which durations are estimated. Stored beside the run index; can be lost.
#
# One JSON object per line, appended: {"url", "what", "work", "device", "nodes", "length", "examples", "seconds", …}.


_MAX_HISTORY_LINES = 2000  # newest lines that are read back
RUN, REHEARSAL = "run", "rehearsal"
# Settings for how long to train, not what a step does: from a run of 3 epochs, one of 30 can be estimated.
LENGTHS = ("epochs", "max_epochs", "phase1_epochs", "phase2_epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """Duration of one past training on a device, and the size of its output."""

    url: str  # of the run; a later line with the same URL replaces this one
    what: str  # the recipe's name, or the script's
    work: str  # digest of everything that a step depends on
    device: str  # per node: "T4:1", "cpu:2"
    nodes: int
    length: float  # epochs
    seconds: float
    examples: float | None = None  # over the whole training
    checkpoint_bytes: int | None = None
    checkpoint_s: float | None = None
    export_bytes: int | None = None
    export_s: float | None = None
    basis: str = RUN


def path() -> Path:
    return state_dir() / "experience.jsonl"


def remember(run: PastRun) -> None:
    """Append a record. Failing to write it costs an estimate, never a run."""
    line = json.dumps(asdict(run), sort_keys=True) + "\n"
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        # One append of less than a page: lines of concurrent processes do not mix.
        with open(path(), "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        import logging

        logging.getLogger("headway").warning("the duration of this run could not be recorded: %s", error)


def past_runs() -> list[PastRun]:
    """Return the records, oldest first, one per run. Unreadable lines are skipped: they are only hints."""
    try:
        with open(path(), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 20)))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_MAX_HISTORY_LINES:]
    except OSError:
        return []
    found: dict[str, PastRun] = {}
    for line in lines:
        try:
            one = PastRun(**json.loads(line))
            if one.seconds > 0 and one.length > 0:
                found.pop(one.url, None)
                found[one.url] = one
        except (ValueError, TypeError):
            continue
    return list(found.values())


def task_of(job: Mapping[str, Any]) -> str:
    """Return what is trained: a recipe, or a named project's program; most are called train.py."""
    if job.get("recipe"):
        return str(job["recipe"])
    program = program_text({**job, "args": ()})
    return f"{program} of {job['name']}" if job.get("name") else program


def work_of(job: Mapping[str, Any]) -> str:
    """Digest what a step does: recipe or script, its settings except for the length, its data."""
    config = {key: value for key, value in current_config(job).items() if key not in LENGTHS}
    known = {"what": task_of(job), "args": list(job.get("args") or ()), "config": config, "data": job.get("data")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def length_of(job: Mapping[str, Any]) -> float:
    """Return the epochs, from the phases or the settings; 1 for a script that does not say."""
    phases = job.get("phases") or ()
    if phases:
        return float(sum(phase["epochs"] for phase in phases))
    config = dict(job.get("config") or {})
    told = [config[key] for key in LENGTHS if isinstance(config.get(key), int | float)]
    return float(sum(told)) or 1.0


# Arithmetic and picture loading, from the settings, without building the model. Rough.


TRAINING = 3.0  # forward and backward, as a multiple of the forward pass: backward costs twice as much
PICTURES_PER_CORE_S = (
    1500.0  # 224-pixel JPEGs that one core decodes and crops: 2,400 measured, less for later processing
)
TOKENS = 20.0  # per caption or sentence, by default

# Billions of multiply-adds per picture of 224 × 224, from the papers.
_GMACS = {
    "alexnet": 0.71, "resnet18": 1.82, "resnet34": 3.67, "resnet50": 4.11, "resnet101": 7.83, "resnet152": 11.56,
    "efficientnet_lite0": 0.41, "efficientnet_lite1": 0.63, "efficientnet_lite2": 0.89, "mobilenet_v3": 0.22,
    "vit_b_16": 17.6, "inception_v3": 5.7, "vgg16": 15.5,
}  # fmt: skip


_INNER = ("dim_feedforward", "ff", "feed_forward")
_WIDTHS = ("d_model", "dim", "hidden_size", "hidden", "embedding_size", "embedding")  # as recipes and scripts name it


def model_sizes(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings by which a job is counted: its own, or those that its recipe derives from them."""
    config, recipe = current_config(job), RECIPES.get(str(job.get("recipe")))
    if recipe is None or not recipe.sizes:
        return config
    kind = recipe.load_config()
    known = {member.name: config[member.name] for member in fields(kind) if member.name in config}
    sizes: Mapping[str, Any] = recipe.load("sizes")(kind(**known))
    return sizes


def flops_per_example(config: Mapping[str, Any]) -> float | None:
    """Count the operations per example, forward and backward; None if the settings do not tell."""
    forward = _image_flops(config) + _text_flops(config)
    return TRAINING * forward if forward else None


def loading_core_s(config: Mapping[str, Any]) -> float:
    """Return the core seconds to load one example. Sentences cost next to nothing."""
    if not _image_flops(config):
        return 0.0
    sides = 2 if config.get("front") and config.get("back") else 1
    passes = min(1.0, float(config.get("frozen_passes", 1.0)))
    return passes * sides * (_image_side(config) / 224.0) ** 2 / PICTURES_PER_CORE_S


def examples_per_epoch(job: Mapping[str, Any]) -> float | None:
    """Count the rows that an epoch reads: as generated by the settings, or from the data's manifests."""
    config = current_config(job)
    sources = (job.get("data") or {}).get("train") or ()
    if sources and all(str(source["source"]).startswith("builtin:") for source in sources):
        drawn = [value for key, value in config.items() if key.startswith("train_") and type(value) is int]
        return float(sum(drawn)) or None
    counts = [_rows(source) for source in sources]
    return float(sum(count for count in counts if count is not None)) if counts and None not in counts else None


def _rows(source: Mapping[str, Any]) -> int | None:
    """Count the rows of a prepared dataset on this machine; None if unknown."""
    split = source.get("split") or "train"
    try:
        manifest = json.loads((Path(str(source["source"])) / "manifest.json").read_text())
        parts = manifest["splits"][split]
        rows = int(parts["rows"] if isinstance(parts, dict) else sum(part["rows"] for part in parts))
    except (OSError, ValueError, KeyError, TypeError):  # remote, not prepared, or of another shape
        return None
    limit = source.get("limit")
    return min(rows, int(limit)) if limit else rows


def _image_flops(config: Mapping[str, Any]) -> float:
    side = _image_side(config)
    names = [str(config[key]) for key in ("encoder", "backbone", "model", "front", "back") if config.get(key)]
    known = sum(_GMACS[_normalise(name)] for name in names if _normalise(name) in _GMACS)
    own = 0.0
    if "cnn" in names and _number(config, "width"):  # four layers that halve the picture, the last four times as wide
        own = 2.5 * 9 * float(config["width"]) ** 2 * (side / 2) ** 2 / 1e9
    known += float(config["gmacs"]) if _number(config, "gmacs") else 0.0  # of a recipe's own model, at 224 × 224
    if _number(config, "frozen_passes"):  # forward only, and perhaps once for all epochs
        known *= float(config["frozen_passes"]) / TRAINING
    narrow = float(config["channels_factor"]) if _number(config, "channels_factor") else 1.0  # of the published layers
    return 2e9 * (known * narrow**2 * (side / 224.0) ** 2 + own)


def _image_side(config: Mapping[str, Any]) -> float:
    return next((float(config[key]) for key in ("image_size", "picture", "size") if _number(config, key)), 224.0)


def _text_flops(config: Mapping[str, Any]) -> float:
    """Count a decoder's or Transformer's operations: two per weight and token."""
    width = next((float(config[key]) for key in _WIDTHS if _number(config, key)), 0.0)
    if not width:
        return 0.0
    layers = _layers(config)
    inner = next((float(config[key]) for key in _INNER if _number(config, key)), 4 * width)
    weights = (layers or 1.0) * (4 * width**2 + 2 * width * inner)
    copies = float(config["captions"]) if _number(config, "captions") else 1.0
    return 2.0 * weights * TOKENS * copies


def _layers(config: Mapping[str, Any]) -> float:
    keys = ("layers", "encoder_layers", "decoder_layers")
    return sum(float(config[key]) for key in keys if _number(config, key))


def _number(config: Mapping[str, Any], key: str) -> bool:
    return isinstance(config.get(key), int | float) and not isinstance(config.get(key), bool)


def _normalise(name: str) -> str:
    return name.lower().replace("-", "_").replace("resnet_", "resnet")


MEASURED, ROUGH = "measured", "rough"
DATA_BOUND = 8  # CPU cores per accelerator on the usual machines
START_S, STEP_S = 60.0, 0.01  # overhead of a start and of a step; in small models it exceeds the arithmetic


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    hours: float
    basis: str  # measured or rough
    how: str  # in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The hardware that trains, per node."""

    kind: str | None  # None: the CPU
    count: int = 1  # accelerators, or cores
    nodes: int = 1

    @property
    def label(self) -> str:
        return f"{self.kind or 'cpu'}:{self.count}"

    @property
    def cores(self) -> int:
        """Cores that load data, on all nodes."""
        return (self.count if self.kind is None else DATA_BOUND * self.count) * self.nodes

    @property
    def tflops(self) -> float | None:
        from headway.pricing.table import sustained_tflops

        one = sustained_tflops(self.kind, self.count, cpus=self.count)
        return None if one is None else one * self.nodes**0.9

    @classmethod
    def of(cls, label: str, nodes: int) -> Device:
        kind, _, count = label.partition(":")
        return cls(kind=None if kind == "cpu" else kind, count=int(count or 1), nodes=nodes)


def device_of(job: Mapping[str, Any], kind: str, cpus: int | None = None) -> Device:
    """Return the device that a job trains on; the CPU if it is this machine and has no NVIDIA driver."""
    resources = job.get("resources") or {}
    asked, nodes = resources.get("accelerator"), int(resources.get("nodes") or 1)
    here = plugin_of(kind).on_this_machine and not os.path.exists("/dev/nvidiactl")
    if asked and not here:
        name, _, count = str(asked).partition(":") if isinstance(asked, str) else (asked["kind"], "", asked["count"])
        return Device(kind=name, count=int(count or 1), nodes=nodes)
    return Device(kind=None, count=cpus or resources.get("cpus") or os.cpu_count() or 1, nodes=nodes)


def estimate(job: Mapping[str, Any], device: Device, past: Sequence[PastRun] | None = None) -> Estimate | None:
    """Return the best available estimate; None if nothing is known about this training."""
    past = past_runs() if past is None else past
    return _from_same_work(job, device, past) or _from_same_recipe(job, device, past) or _from_flops(job, device)


def _from_same_work(job: Mapping[str, Any], device: Device, past: Sequence[PastRun]) -> Estimate | None:
    work, length = work_of(job), length_of(job)
    same = [one for one in past if one.work == work]
    here = [one for one in same if (one.device, one.nodes) == (device.label, device.nodes)]
    runs = [one for one in here if one.basis != REHEARSAL]
    if runs or here:
        from statistics import median  # slow to import

        chosen = (runs or here)[-5:]
        hours = median(one.seconds / one.length for one in chosen) * length / 3600
        if runs:
            return Estimate(hours=hours, basis=MEASURED, how=f"{len(chosen)} run(s) of this job on {device.label}")
        return Estimate(hours=hours, basis=ROUGH, how="the rehearsal's rate, with batches of 2")
    for one in reversed(same):
        ratio = _ratio(Device.of(one.device, one.nodes), device)
        if ratio is not None:
            hours = max(_minimum_s(job), one.seconds / one.length * length * ratio / 3600)
            what = "a rehearsal" if one.basis == REHEARSAL else "a run"
            return Estimate(hours=hours, basis=ROUGH, how=f"{what} of this job on {one.device}, by the devices' speeds")
    return None


def _from_same_recipe(job: Mapping[str, Any], device: Device, past: Sequence[PastRun]) -> Estimate | None:
    """Scale from a run with other settings or data, by the number of examples and the devices' speeds."""
    total = _examples(job)
    if total is None or not job.get("recipe"):
        return None
    for one in reversed(past):
        if one.what != task_of(job) or not one.examples or one.basis == REHEARSAL:
            continue
        ratio = _ratio(Device.of(one.device, one.nodes), device)
        if ratio is not None:
            hours = max(_minimum_s(job), one.seconds / one.examples * total * ratio / 3600)
            return Estimate(hours=hours, basis=ROUGH, how=f"another {task_of(job)} run on {one.device}")
    return None


def _from_flops(job: Mapping[str, Any], device: Device) -> Estimate | None:
    sizes = model_sizes(job)
    each, total, speed = flops_per_example(sizes), _examples(job), device.tflops
    if not each or not total or not speed:
        return None
    computing, loading = each * total / (speed * 1e12), loading_core_s(sizes) * total / device.cores
    # A GPU computes while cores prefetch: the slower of the two counts. Without a GPU, cores do both.
    seconds = computing + loading if device.kind is None else max(computing, loading)
    slower = "its pictures" if device.kind is not None and loading > computing else "the model's arithmetic"
    return Estimate(hours=_minimum_s(job) + seconds / 3600, basis=ROUGH, how=f"a count of {slower}")


def _minimum_s(job: Mapping[str, Any]) -> float:
    """Return the hours of overhead that do not depend on the device's speed."""
    config, total = current_config(job), _examples(job)
    batch = config.get("batch_size") or config.get("batch")
    steps = total / batch if total and isinstance(batch, int | float) and batch > 0 else 0.0
    return (START_S + steps * STEP_S) / 3600


def _examples(job: Mapping[str, Any]) -> float | None:
    epoch = examples_per_epoch(job)
    return None if epoch is None else epoch * length_of(job)


def _ratio(past: Device, wanted: Device) -> float | None:
    """Return how many times longer the wanted device takes."""
    before, now = past.tflops, wanted.tflops
    return before / now if before and now else None


# Record what a finished run took and wrote, for estimates in later plans of the same kind.


def record_run(folder: RunFolder, spent_s: float) -> None:
    """Record a finished run. A run that was cut short must not be recorded: it says nothing about the whole."""
    plan, events = folder.plan(), folder.events()
    threads = str(plan.environment.get("threads", ""))
    cpus = int(threads) * plan.processes if threads.isdigit() else None
    device = device_of(plan.job, plan.kind, cpus)
    saved, exported = ([event for event in events if event.get("kind") == kind] for kind in ("checkpoint", "export"))
    epoch = examples_per_epoch(plan.job)
    length = length_of(plan.job)
    if spent_s <= 0:
        return
    remember(
        PastRun(
            url=folder.url,
            what=task_of(plan.job),
            work=work_of(plan.job),
            device=device.label,
            nodes=plan.nodes,
            length=length,
            seconds=round(spent_s, 3),
            examples=None if epoch is None else epoch * length,
            checkpoint_bytes=_largest(saved, "bytes"),
            checkpoint_s=_largest(saved, "seconds"),
            export_bytes=sum(entry.size for entry in folder.store.list("export/")) or None,
            export_s=_largest(exported, "seconds"),
        )
    )


def _largest(events: list[dict[str, Any]], key: str) -> Any:
    return max((event[key] for event in events if isinstance(event.get(key), int | float)), default=None)
