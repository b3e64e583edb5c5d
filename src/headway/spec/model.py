"""The job file's nouns. Frozen, typed, no behaviour, no knowledge of any target.

Durations are seconds and sizes are bytes here; `units` reads and writes what people type.
The field comments become the descriptions in the published JSON Schema and in docs/job-file.md.

A mark beside a type says more than the type can: how it is typed, its bounds, what it may name.
`marks` gives each its meaning. Recipes' configs and targets' options use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

Seconds = Annotated[float, "duration"]  # typed as 90s, 10m, 8h, 2d, 1h30m
Bytes = Annotated[int, "size"]  # typed as 512MB, 30GB, 1TB, 30GiB
ReferenceString = Annotated[str, "env"]  # the only strings in which ${env:NAME} is expanded
Location = Annotated[str, "env", "location"]  # a folder or an object store's URL
Weights = Annotated[str, "env", "weights"]  # a run, a bundle or a file
LocalFolder = Annotated[str, "env", "local folder"]
DataSource = Annotated[str, "env", "source"]  # a location, a web address, or builtin:NAME
Text = Annotated[str, "text"]  # numbers and true/false are taken as they are typed
ReferenceText = Annotated[str, "env", "text"]
JobName = Annotated[str, "job name"]
TargetName = Annotated[str, "target name"]
FileName = Annotated[str, "file name"]
Variable = Annotated[str, "variable"]  # the name of an environment variable
SecretReference = Annotated[str, "secret"]  # where a secret lies, never the secret
ProjectFile = Annotated[str, "project file"]  # exists below the job file's folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One data set, or part of one."""

    source: DataSource  # a folder, a URL (gs://, s3://, az://, https://) or `builtin:NAME`
    weight: Annotated[float, "> 0"] = 1.0  # how often it is drawn from, relative to the other sources
    split: FileName | None = None  # which split to read; by default the one that carries the list's name
    limit: Annotated[int, ">= 1"] | None = None  # at most this many rows
    where: Mapping[str, Any] = field(default_factory=dict)  # keep only rows with these values


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What is read. Left out, a recipe that has drawn data of its own uses it (`builtin:scenes` for captioning)."""

    train: tuple[Source, ...] = ()  # what the model learns from
    val: tuple[Source, ...] = ()  # what checkpoints are chosen by
    test: tuple[Source, ...] = ()  # what `headway eval` reports


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """The finished model, as a bundle that needs none of the training code's state."""

    to: Location | None = None  # publish the bundle here besides the run folder, atomically
    name: FileName | None = None  # the model's name; by default the job's


@dataclass(frozen=True, kw_only=True, slots=True)
class Cadence:
    """How often: exactly one of the three is set. Typed as `10m`, `500 steps` or `5 epochs`."""

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """When checkpoints are written, and which are kept."""

    every: Cadence | None = None  # by default 10m, and 2m on spot machines
    keep_last: Annotated[int, ">= 1"] = 3  # the newest, to resume from
    keep_best: Annotated[int, ">= 0"] = 1  # the best by the score that chooses, to export
    keep_every: Cadence | None = None  # kept for good, besides the last and the best


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """Typed as `T4:1`: the kind, and how many on each node."""

    kind: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What each node must have, and how many nodes."""

    accelerator: Accelerator | None = None  # T4:1, L4:4, A100:8, …; none trains on the CPU
    machine: str | None = None  # the cloud's name for it: n1-standard-8
    nodes: Annotated[int, ">= 1"] = 1  # machines, or pods
    processes: Annotated[int, ">= 1"] | Literal["auto"] = "auto"  # ranks on each node; auto: one for each accelerator
    cpus: Annotated[int, ">= 1"] | None = None  # on each node
    memory: Bytes | None = None  # on each node
    disk: Bytes | None = None  # on each node
    spot: bool = False  # cheaper machines that may be taken away; the run resumes by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A total over all attempts and nodes. At its end the best so far is exported."""

    usd: Annotated[float, "> 0"] | None = None  # dollars, by the price that `headway plan` shows
    hours: Annotated[float, "> 0"] | None = None  # of running; waiting in a queue is not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A reference, never a value. Typed as `env:NAME`, or `{ref: env:NAME, as: file}`."""

    ref: SecretReference  # env:NAME, file:PATH, gcp-sm://NAME, aws-sm://NAME or k8s://SECRET/KEY
    as_: Literal["env", "file"] = "env"  # the variable holds the value, or the path of a file with the value


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The container image, for the targets that use one. A ready `uri`, or a `base` and a `repository` to build one."""

    base: ReferenceString | None = None  # what our Dockerfile starts from
    repository: ReferenceString | None = None  # where the built one goes: us-docker.pkg.dev/PROJECT/REPO/NAME
    uri: ReferenceString | None = None  # a ready image, used as it is


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Remote data, kept on the machine's own disk."""

    dir: LocalFolder | None = None  # where; by default a folder of the user's cache
    size: Bytes | None = None  # at most this much; the least used goes first


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A file system that the target mounts. Exactly one of `nfs`, `pvc` and `path`."""

    at: Annotated[str, "absolute path"]  # the path inside
    nfs: Annotated[str, "nfs export"] | None = None  # server:/export
    pvc: str | None = None  # a Kubernetes volume claim
    path: Annotated[str, "absolute path"] | None = None  # a folder of the machine
    read_only: bool = False  # nothing may be written there


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Who is told when a run ends, fails or nears its budget."""

    webhook: SecretReference | None = None  # a secret reference to a Slack-compatible URL
    command: str | None = None  # run on this machine with HEADWAY_EVENT set


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A stretch of training with its own settings."""

    name: FileName  # its best checkpoint is called NAME_best
    epochs: Annotated[int, ">= 1"]  # how long it lasts
    lr: Annotated[float, "> 0"] | None = None  # the learning rate; by default the config's
    train: tuple[str, ...] = ("*",)  # parameter name patterns that learn in this phase
    sampler: str | None = None  # how rows are drawn; by default the config's
    best: str | None = None  # the metric that chooses this phase's best checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEntry:
    """One named place. Its options belong to its kind and are checked by it."""

    kind: str  # local, kubernetes, vertex, ssh, …
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults filled in; typed beside `kind`


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What headway.yaml says."""

    name: JobName  # lower case letters, digits and dashes, at most 40: runs are named after it
    recipe: str | None = None  # a recipe that ships with Headway …
    script: ProjectFile | None = None  # … or your own script, of any framework
    args: tuple[Text, ...] = ()  # the script's arguments
    config: Mapping[str, Any] = field(default_factory=dict)  # the recipe's settings, or your script's run.config
    seed: Annotated[int, ">= 0"] = 0  # same seed, same machine: same weights
    data: Data = field(default_factory=Data)  # what is read
    outputs: Location = "runs"  # a folder, gs://, s3:// or az://: run folders go here
    export: Export = field(default_factory=Export)  # where the finished model goes
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # when one is written, and which are kept
    phases: tuple[Phase, ...] = ()  # stretches of training, one after the other
    init_from: Weights | None = None  # start from the weights of a run or a bundle
    exact: bool = False  # on GPUs: deterministic algorithms, at their cost
    resources: Resources = field(default_factory=Resources)  # machines, accelerators, memory
    budget: Budget = field(default_factory=Budget)  # a total over all attempts and nodes
    max_wait: Seconds | None = None  # in a queue; not counted as spent
    retries: Annotated[int, ">= 0"] = 3  # restarts in place after a crash, over all attempts
    secrets: Mapping[Variable, Secret] = field(default_factory=dict)  # variable: where its value lies
    log_to: tuple[Literal["mlflow", "tensorboard", "wandb"], ...] = ()  # trackers besides the run folder
    env: Mapping[Variable, ReferenceText] = field(default_factory=dict)  # environment variables of every rank
    image: Image = field(default_factory=Image)  # the container image, for the targets that use one
    requirements: ProjectFile | None = None  # a pip requirements file, for places without an image
    setup: tuple[str, ...] = ()  # shell commands before the first start, for places without an image
    cache: Cache = field(default_factory=Cache)  # remote data on the machine's own disk
    mounts: tuple[Mount, ...] = ()  # file systems that the target mounts
    notify: Notify = field(default_factory=Notify)  # who is told
    targets: Mapping[TargetName, TargetEntry] = field(default_factory=dict)  # named places; `local` is always there

    # Not a key of the file: where it lies. Relative paths start here. Left out of plans, which must not depend on it.
    root: str = field(default=".", compare=False, metadata={"key": False})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        set: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Read and validate a job file.

        Args:
            path: The file.
            set: Overrides as on the command line: `config.lr=0.1`.
            variables: Environment variables to add for the run.
            env: Variables for `${env:NAME}` in the file. None: those of this process.

        Returns:
            The job.

        Raises:
            BadJob: With all problems of the file, each with line and column.

        Example:
            >>> import headway
            >>> headway.Job.load("headway.yaml", set=["seed=3"]).seed
            3
        """
        from headway.spec.loading import load

        return load(path, set=set, variables=variables, env=env)
