"""The job file's nouns. Frozen, typed, no behaviour, no knowledge of any target.

Durations are seconds and sizes are bytes here; `units` reads and writes what people type.
The field comments become the descriptions in the published JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

Seconds = Annotated[float, "duration"]  # typed as 90s, 10m, 8h, 2d
Bytes = Annotated[int, "size"]  # typed as 512MB, 30GB, 1TB
ReferenceString = Annotated[str, "env"]  # the only strings in which ${env:NAME} is expanded


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One data set, or part of one."""

    source: ReferenceString  # a folder, a URL (gs://, s3://, az://, https://) or `builtin:NAME`
    weight: float = 1.0  # how often it is drawn from, relative to the other sources
    split: str | None = None  # which split to read; by default the one that carries the list's name
    limit: int | None = None  # at most this many rows
    where: Mapping[str, Any] = field(default_factory=dict)  # keep only rows with these values


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    train: tuple[Source, ...] = ()  # what the model learns from
    val: tuple[Source, ...] = ()  # what checkpoints are chosen by
    test: tuple[Source, ...] = ()  # what `headway eval` reports


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    to: ReferenceString | None = None  # publish the bundle here besides the run folder, atomically
    name: str | None = None  # the model's name; by default the job's


@dataclass(frozen=True, kw_only=True, slots=True)
class Cadence:
    """How often: exactly one of the three is set. Typed as `10m`, `500 steps` or `5 epochs`."""

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    every: Cadence | None = None  # by default 10m, and 2m on spot machines
    keep_last: int = 3
    keep_best: int = 1
    keep_every: Cadence | None = None  # kept for good, besides the last and the best


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """Typed as `T4:1`: the kind, and how many on each node."""

    kind: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    accelerator: Accelerator | None = None  # T4:1, L4:4, A100:8, …; none trains on the CPU
    machine: str | None = None  # the cloud's name for it: n1-standard-8
    nodes: int = 1
    processes: int | Literal["auto"] = "auto"  # ranks on each node; auto is one for each accelerator, or one
    cpus: int | None = None
    memory: Bytes | None = None
    disk: Bytes | None = None
    spot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A total over all attempts and nodes. At its end the best so far is exported."""

    usd: float | None = None
    hours: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A reference, never a value: env:NAME, file:PATH, gcp-sm://…, aws-sm://…, k8s://secret/key."""

    ref: str
    as_: Literal["env", "file"] = "env"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    base: str | None = None  # what our Dockerfile starts from
    repository: str | None = (
        None  # where the built image is pushed: LOCATION-docker.pkg.dev/PROJECT/REPO/NAME
    )
    uri: str | None = None  # a ready image, used as it is


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    dir: ReferenceString | None = None  # where remote data is kept on the machine's own disk
    size: Bytes | None = None  # at most this much


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    at: str  # the path inside
    nfs: str | None = None  # server:/export
    pvc: str | None = None  # a Kubernetes volume claim
    path: str | None = None  # a folder of the machine
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    webhook: str | None = None  # a secret reference to a Slack-compatible URL
    command: str | None = None  # run on this machine with HEADWAY_EVENT set


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A stretch of training with its own settings."""

    name: str
    epochs: int
    lr: float | None = None
    train: tuple[str, ...] = ("*",)  # parameter name patterns that learn in this phase
    sampler: str | None = None
    best: str | None = None  # the metric that chooses this phase's best checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEntry:
    """One named place. Its options belong to its kind and are checked by it."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What headway.yaml says."""

    name: str  # lower case letters, digits and dashes
    recipe: str | None = None  # a recipe that ships with Headway …
    script: str | None = None  # … or your own script, of any framework
    args: tuple[str, ...] = ()  # its arguments
    config: Mapping[str, Any] = field(
        default_factory=dict
    )  # the recipe's settings, or what your script reads as run.config
    seed: int = 0
    data: Data = field(default_factory=Data)
    outputs: ReferenceString = "runs"  # a folder, gs://, s3:// or az://: run folders go here
    export: Export = field(default_factory=Export)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    phases: tuple[Phase, ...] = ()
    init_from: ReferenceString | None = None  # start from the weights of a run or a bundle
    exact: bool = False  # on GPUs: deterministic algorithms, at their cost
    resources: Resources = field(default_factory=Resources)
    budget: Budget = field(default_factory=Budget)
    max_wait: Seconds | None = None  # in a queue; not counted as spent
    retries: int = 3  # restarts in place after a crash, over all attempts
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    log_to: tuple[Literal["mlflow", "tensorboard", "wandb"], ...] = ()
    env: Mapping[str, ReferenceString] = field(default_factory=dict)
    image: Image = field(default_factory=Image)
    requirements: str | None = None  # a pip requirements file, for places without an image
    setup: tuple[str, ...] = ()  # shell commands before the first start, for places without an image
    cache: Cache = field(default_factory=Cache)
    mounts: tuple[Mount, ...] = ()
    notify: Notify = field(default_factory=Notify)
    targets: Mapping[str, TargetEntry] = field(default_factory=dict)
    root: str = field(default=".", metadata={"key": False})  # the job file's folder, set by the loader: not a key
