"""The dataclasses of the job file: frozen, typed, without behaviour and independent of any target.

Durations are seconds and sizes are bytes here; `units` parses and formats the text that people type.
The field comments become the descriptions in the published JSON Schema and in docs/job-file.md.

A mark in an annotation adds to the type: the format of the text, its bounds, or what it may name. `constraints` defines
the marks; recipes' configs and targets' options use the same ones.
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
Text = Annotated[str, "text"]  # numbers and true/false are read as text
ReferenceText = Annotated[str, "env", "text", "placeholders"]
JobName = Annotated[str, "job name"]
TargetName = Annotated[str, "target name"]
TrackerName = Annotated[str, "tracker"]  # a key of `headway.plugins.TRACKERS`
FileName = Annotated[str, "file name"]
Variable = Annotated[str, "variable"]  # the name of an environment variable
SecretReference = Annotated[str, "secret"]  # a reference to a secret, never its value
ProjectFile = Annotated[str, "project file"]  # exists below the job file's folder
MetricSource = Annotated[str, "metric source"]  # the name of a source, or a pattern with named groups
Template = Annotated[str, "text", "placeholders"]  # {run_dir} and the like are filled in where it runs
Words = Annotated[tuple[Template, ...], "words"]  # a list, or one text that is split as a shell would
OPTIONAL = {"key": "optional"}  # left out of plans where it has its default


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data set, or part of one."""

    source: DataSource  # a folder, a URL (gs://, s3://, az://, https://) or `builtin:NAME`
    weight: Annotated[float, "> 0"] = 1.0  # how often it is drawn from, relative to the other sources
    split: FileName | None = None  # the split to read; by default the one with the name of the list: train, val or test
    limit: Annotated[int, ">= 1"] | None = None  # at most this many rows
    where: Mapping[str, Any] = field(default_factory=dict)  # keep only rows with these values


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The data to train and evaluate on. By default the recipe's built-in data (`builtin:scenes` for captioning)."""

    train: tuple[Source, ...] = ()  # training data
    val: tuple[Source, ...] = ()  # validation data, by which the best checkpoint is chosen
    test: tuple[Source, ...] = ()  # test data, on which `headway eval` scores the model


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """How a project continues from the files that it has saved."""

    args: Words = ()  # added to the arguments: [--resume, "{run_dir}/last.pth"]
    if_exists: Template | None = None  # only if this run has written that file (in its folder, or a full path)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndsWhen:
    """When a program that never exits by itself has finished: its files are kept and the run counts as finished."""

    output: str | None = None  # it prints this text (a regular expression) …
    idle: Seconds | None = None  # … and nothing more for this long; alone: after its last output


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """Where to publish the finished model, as a self-contained bundle."""

    to: Location | None = None  # publish the bundle here too, atomically, besides the run folder
    name: FileName | None = None  # the model's name; by default the job's


@dataclass(frozen=True, kw_only=True, slots=True)
class Cadence:
    """How often: exactly one of the three is set. Typed as `10m`, `500 steps` or `5 epochs`."""

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """When to write checkpoints, and which to keep."""

    every: Cadence | None = None  # by default 10m, and 2m on spot machines
    keep_last: Annotated[int, ">= 1"] = 3  # how many of the newest to keep, to resume from
    keep_best: Annotated[int, ">= 0"] = 1  # how many of the best by validation score to keep, to export
    keep_every: Cadence | None = None  # how often to keep one permanently, besides the newest and the best


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """Accelerators per node. Typed as `T4:1`: the type, and how many."""

    kind: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The number of nodes, and the resources of each."""

    accelerator: Accelerator | None = None  # T4:1, L4:4, A100:8, …; by default none: train on the CPU
    machine: str | None = None  # the cloud's machine type: n1-standard-8
    nodes: Annotated[int, ">= 1"] = 1  # machines, or pods
    processes: Annotated[int, ">= 1"] | Literal["auto"] = "auto"  # ranks per node; auto: one per accelerator
    cpus: Annotated[int, ">= 1"] | None = None  # per node
    memory: Bytes | None = None  # per node
    disk: Bytes | None = None  # per node
    spot: bool = False  # use cheaper machines that the cloud may preempt; the run resumes automatically


NO_BUDGET = "none"  # written instead of the keys of a budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits for the whole run, over all attempts and nodes. When one is reached, the best model so far is exported.

    A billed run without any ends after 24 hours; `budget: none` runs it without a limit.
    """

    usd: Annotated[float, "> 0"] | None = None  # US dollars, at the price that `headway plan` shows
    hours: Annotated[float, "> 0"] | None = None  # hours of running; time in a queue does not count
    unlimited: bool = field(default=False, metadata={"key": "recorded"})  # how `budget: none` is recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A reference to a secret, never its value. Typed as `env:NAME`, or `{ref: env:NAME, as: file}`."""

    ref: SecretReference  # env:NAME, file:PATH, gcp-sm://NAME, aws-sm://NAME or k8s://SECRET/KEY
    as_: Literal["env", "file"] = "env"  # whether the variable contains the value, or the path of a file with the value
    # With `as: file`: where the project reads it, in its own folder. Written before it starts, never kept.
    at: Annotated[str, "project path"] | None = field(default=None, metadata={"key": "optional"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The container image, for targets that use one: an existing `uri`, your own `dockerfile`, or a `base` on which
    Headway builds one."""

    base: ReferenceString | None = None  # base image of the generated Dockerfile
    repository: ReferenceString | None = None  # where to push the built image: us-docker.pkg.dev/PROJECT/REPO/NAME
    uri: ReferenceString | None = None  # an existing image, used unchanged
    dockerfile: ProjectFile | None = field(default=None, metadata=OPTIONAL)  # your own Dockerfile, built as it is …
    # … with this folder as its build context; by default the job file's folder
    context: Annotated[str, "project path"] = field(default=".", metadata=OPTIONAL)
    # the platform to build for, or to pull; by default the target's
    platform: Annotated[str, "platform"] | None = field(default=None, metadata=OPTIONAL)
    # In plans alone: the text of the Dockerfile, and a hash of the files of its context.
    dockerfile_text: str = field(default="", metadata={"key": "recorded"})
    context_sha256: str = field(default="", metadata={"key": "recorded"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Cache of remote data on the machine's disk."""

    dir: LocalFolder | None = None  # its folder; by default one in the user's cache folder
    size: Bytes | None = None  # the most it may hold; the least recently used data is evicted first


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A file system that the target mounts: exactly one of `nfs`, `pvc` and `path`."""

    at: Annotated[str, "absolute path"]  # where to mount it, as seen by the training
    nfs: Annotated[str, "nfs export"] | None = None  # server:/export
    pvc: str | None = None  # a Kubernetes PersistentVolumeClaim
    path: Annotated[str, "absolute path"] | None = None  # a folder on the machine
    read_only: bool = False  # mount it read-only


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Notifications when a run ends, fails or nears its budget."""

    webhook: SecretReference | None = None  # a secret reference to a Slack-compatible URL
    command: str | None = None  # a command to run on this machine, with HEADWAY_EVENT set


@dataclass(frozen=True, kw_only=True, slots=True)
class Explain:
    """A failure that you know: what `headway why` says of it, and whether it is retried."""

    match: str  # a regular expression, matched within one line of the output; its (?P<name>…) are {name} below
    cause: str  # what it means
    fix: str = field(default="", metadata=OPTIONAL)  # what to do or type next
    # retry: another attempt may succeed; wait: after a longer pause; once: and never twice at the same line; never
    retry: Literal["retry", "wait", "once", "never"] = field(default="once", metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A phase of training with its own settings."""

    name: FileName  # its best checkpoint is called NAME_best
    epochs: Annotated[int, ">= 1"]  # its length
    lr: Annotated[float, "> 0"] | None = None  # the learning rate; by default the config's
    train: tuple[str, ...] = ("*",)  # patterns of parameter names to train in this phase
    sampler: str | None = None  # how to sample rows; by default the config's
    best: str | None = None  # the metric by which this phase's best checkpoint is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEntry:
    """A place to run, by name. Its kind defines and validates its options."""

    kind: str  # local, kubernetes, vertex, ssh, …
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults filled in; typed beside `kind`


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectDependencies:
    """What a project's pyproject.toml or setup.py says about its dependencies. Recorded in plans, never typed."""

    source: str = ""  # the file; empty if there is none
    listed: tuple[str, ...] = ()  # requirements that the file lists
    install: bool = False  # whether to install the project itself (pip install .), with whatever it requires besides


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job: the contents of headway.yaml."""

    name: JobName  # lower case letters, digits and dashes, at most 40 characters; runs are named after it
    recipe: str | None = None  # a recipe that comes with Headway …
    script: ProjectFile | None = None  # … or your own script, in any framework …
    module: Annotated[str, "module"] | None = field(default=None, metadata=OPTIONAL)  # … or python -m MODULE …
    notebook: ProjectFile | None = field(default=None, metadata=OPTIONAL)  # … or a notebook, executed and kept …
    command: Words = field(default=(), metadata=OPTIONAL)  # … or any command line, in the project's folder
    args: Words = ()  # arguments of the script or module; NAME=VALUE parameters of a notebook
    python: ReferenceString | None = field(default=None, metadata=OPTIONAL)  # interpreter of your own environment
    resume: Resume = field(default_factory=Resume, metadata=OPTIONAL)  # how your program continues from its files
    keep: tuple[Text, ...] = field(default=(), metadata=OPTIONAL)  # which files to keep; by default all it writes
    keep_limit: Bytes | None = field(
        default=None, metadata=OPTIONAL
    )  # the most to keep of what it writes; default: 50GB
    ends_when: EndsWhen = field(default_factory=EndsWhen, metadata=OPTIONAL)  # for a program that does not exit
    # where to read your program's metrics: names of sources, patterns with named groups; default: the usual ones
    metrics: tuple[MetricSource, ...] | None = field(default=None, metadata=OPTIONAL)
    # your model's class, a headway.Model: eval, compare, export, predict and serve work on it
    model: Annotated[str, "model class"] | None = field(default=None, metadata=OPTIONAL)
    config: Mapping[str, Any] = field(default_factory=dict)  # the recipe's settings, or your script's run.config
    seed: Annotated[int, ">= 0"] = 0  # the same seed gives the same weights on the same machine
    data: Data = field(default_factory=Data)  # the data to read; a project may use any names: {splits: gs://…}
    outputs: Location = "runs"  # where to create run folders: a folder, gs://, s3:// or az://
    export: Export = field(default_factory=Export)  # where to publish the finished model
    checkpoint: Checkpoint = field(default_factory=Checkpoint)  # when to write checkpoints, and which to keep
    phases: tuple[Phase, ...] = ()  # phases of training, one after the other
    init_from: Weights | None = None  # start from the weights of a run or a bundle
    exact: bool = False  # use deterministic algorithms on GPUs, which are slower
    # in which precision to compute: fp32, tf32 (fp32 with faster products on GPUs), bf16 or fp16 (autocast).
    # By default fp32; recipes on a GPU: bf16, or fp16 where the GPU has no bf16
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = field(default=None, metadata=OPTIONAL)
    compile: bool | None = field(default=None, metadata=OPTIONAL)  # compile models (torch.compile); restarts reuse it
    # micro-batches per step, which need less memory; auto: more of them when memory runs out
    accumulate: Annotated[int, ">= 1"] | Literal["auto"] | None = field(default=None, metadata=OPTIONAL)
    clip: Annotated[float, "> 0"] | None = field(default=None, metadata=OPTIONAL)  # the largest norm of the gradients
    channels_last: bool | None = field(default=None, metadata=OPTIONAL)  # store images channels last: faster on GPUs
    resources: Resources = field(default_factory=Resources)  # machines, accelerators, memory
    budget: Budget = field(default_factory=Budget)  # limits in dollars and hours, over all attempts and nodes
    max_wait: Seconds | None = None  # the longest time to wait in a queue; not counted as spent
    retries: Annotated[int, ">= 0"] = 3  # how often to restart after a crash, over all attempts
    # without progress for this long, the run counts as stalled; default: learned from its own steps and output
    stall: Seconds | None = field(default=None, metadata=OPTIONAL)
    # what follows a stall: another attempt, the end of the run, a message alone, or nothing at all
    on_stall: Literal["restart", "stop", "report", "off"] = field(default="restart", metadata=OPTIONAL)
    explain: tuple[Explain, ...] = field(default=(), metadata=OPTIONAL)  # failures of your own that `why` explains
    secrets: Mapping[Variable, Secret] = field(default_factory=dict)  # variable: reference to its secret
    log_to: tuple[TrackerName, ...] = ()  # trackers, besides the run folder
    env: Mapping[Variable, ReferenceText] = field(default_factory=dict)  # environment variables of every rank
    image: Image = field(default_factory=Image)  # the container image, for the targets that use one
    # a pip requirements file to install; by default the project's pyproject.toml or setup.py
    requirements: ProjectFile | None = None
    setup: tuple[str, ...] = ()  # shell commands before the first start; of a generated image: when it is built
    cache: Cache = field(default_factory=Cache)  # cache of remote data on the machine's disk
    mounts: tuple[Mount, ...] = ()  # file systems that the target mounts
    notify: Notify = field(default_factory=Notify)  # notifications when a run ends, fails or nears its budget
    targets: Mapping[TargetName, TargetEntry] = field(default_factory=dict)  # places to run; `local` is always defined

    # The files and folders that a project names under `data`, each one path or URL: {data.NAME} is its path.
    named_data: Mapping[FileName, DataSource] = field(default_factory=dict, metadata={"key": "recorded"})
    # In plans alone: what to install of a project without `requirements`, from its pyproject.toml or setup.py.
    dependencies: ProjectDependencies = field(default_factory=ProjectDependencies, metadata={"key": "recorded"})
    # Not a key of the file: its folder, to which paths are relative. Not in plans, which must not depend on it.
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
