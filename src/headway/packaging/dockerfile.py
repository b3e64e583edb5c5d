"""The specification of an image as one value, from which the Dockerfile and a content-based name are derived. Pure."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from headway.core.errors import BadInput
from headway.packaging.code import ALWAYS_IGNORED, SECRET_PATTERNS
from headway.packaging.requirements import extras

if TYPE_CHECKING:
    from headway.core.plan import Plan


# .dockerignore


WEIGHT_PATTERNS = ("*.bin", "*.ckpt", "*.gguf", "*.h5", "*.keras", "*.onnx", "*.pb", "*.pt", "*.pth", "*.safetensors",
           "*.tflite")  # fmt: skip
DATA_PATTERNS = ("*.arrow", "*.feather", "*.hdf5", "*.lmdb", "*.npy", "*.npz", "*.parquet", "*.tfrecord", "*.tfrecords",
        "*.7z", "*.tar", "*.tar.*", "*.tgz", "*.zip")  # fmt: skip
OUTPUT_DIRS = ("lightning_logs", "mlruns", "wandb")


def dockerignore(project_lines: Iterable[str] = ()) -> str:
    """Render the .dockerignore. `project_lines`, the project's own file, come last, so they win."""
    groups = (
        ("weights: the run folder has them, and they stay on your disk or in your bucket", WEIGHT_PATTERNS),
        ("data: mounted or fetched where the run is, never baked in", DATA_PATTERNS),
        ("what earlier runs wrote", OUTPUT_DIRS),
        ("secrets: they are given to the run as references", SECRET_PATTERNS),
        ("what no run needs", ALWAYS_IGNORED),
    )
    lines = ["# Made by Headway. A .dockerignore of your own beside the job file is added below, and wins."]
    for title, patterns in groups:
        lines += ["", f"# {title}", *(f"code/**/{pattern}" for pattern in patterns)]
    project_patterns = [
        _prefix_code_dir(line) for line in project_lines if line.strip() and not line.lstrip().startswith("#")
    ]
    return "\n".join([*lines, *(["", "# your own", *project_patterns] if project_patterns else [])]) + "\n"


def excluded_files(names: Iterable[str]) -> list[str]:
    """Return the code files that stay out because they look like data or weights, for the plan's notes."""
    return [name for name in names if _looks_like_data(name)]


def _looks_like_data(name: str) -> bool:
    *folders, file = name.split("/")
    return any(fnmatch.fnmatch(file, pattern) for pattern in (*WEIGHT_PATTERNS, *DATA_PATTERNS)) or bool(
        {*folders} & {*OUTPUT_DIRS}
    )


def _prefix_code_dir(line: str) -> str:
    """Rewrite a line of the project's .dockerignore for a project in `code/`."""
    negation, pattern = ("!", line.strip()[1:]) if line.strip().startswith("!") else ("", line.strip())
    return f"{negation}code/{pattern.lstrip('/')}"


# Quote values for a Dockerfile: `quote` is the only way in.
#
# A Dockerfile is read line by line before any shell sees it: a line feed ends an instruction even inside a shell's
# quotation marks. Guarantees: a quoted value stays one value on one line. Raises BadInput where it cannot.


QuoteStyle = Literal["comment", "word", "label", "shell"]

_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_BARE_WORD = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9@%+=:,./_~-]*"
)  # an image, platform or file that needs no quotes anywhere


def quote(value: str, style: QuoteStyle, what: str) -> str:
    """Quote a value for a comment, as one bare word, as a label's value, or as one word for a shell.

    `what` names it in the error: "the base image".
    """
    if style == "comment":
        return _CONTROL.sub(" ", value).rstrip("\\")
    if _CONTROL.search(value) or (style == "word" and not _BARE_WORD.fullmatch(value)):
        raise BadInput(f"{what} cannot be written into a Dockerfile: {value[:200]!r}", fix=f"change {what}")
    if style == "label":
        return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'
    return value if style == "word" else shlex.quote(value)


def label_instruction(values: dict[str, str]) -> str:
    """Render one LABEL instruction."""
    pairs = [f"{quote(key, 'word', 'a label')}={quote(value, 'label', key)}" for key, value in values.items()]
    return "LABEL " + " \\\n      ".join(pairs)


def run_instruction(command: str) -> str:
    """Render a shell command as one RUN instruction, in exec form where a plain line would mean something else."""
    command = command.strip()
    multi_line = _CONTROL.search(command.replace("\t", " ")) or command.endswith("\\") or "<<" in command
    if multi_line or command.startswith(("[", "--", "#")):
        return f"RUN {exec_form(['/bin/sh', '-ec', command])}"
    return f"RUN {command}"


def exec_form(arguments: Sequence[str]) -> str:
    """Render the words of ENTRYPOINT, CMD or RUN in exec form: no shell reads them, and JSON escapes line feeds."""
    return json.dumps(list(arguments))


PLATFORM = "linux/amd64"
CODE_DIR, HOME_DIR, VENV_DIR = "/headway/code", "/home/headway", "/opt/headway"
NODE_DIR = "/headway/node"  # a run's files on its machine: spool, files, resume
WRITABLE_DIRS = f"{CODE_DIR} {NODE_DIR} {HOME_DIR} {HOME_DIR}/.cache {HOME_DIR}/.config"
LABEL_PREFIX = "headway"  # the prefix of every label
SUPERVISOR = "headway.runtime.worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpec:
    """The specification of an image to build. Equal ones have the same name."""

    job: str
    headway: str
    base: str
    platform: str
    setup: tuple[str, ...]
    requirements: str | None
    extras: tuple[str, ...]
    wheel: str
    wheel_sha256: str
    code_sha256: str
    repository: str | None

    @property
    def tag(self) -> str:
        """Content hash: any change of code, requirements or Headway gives another image."""
        text = json.dumps([asdict(self), self.dockerfile(), dockerignore()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.repository or f'headway/{self.job}'}:{self.tag}"

    def dockerfile(self) -> str:
        """Render the Dockerfile: readable, and buildable by hand in the folder that `headway image --out` writes."""
        return "\n".join([*self._base(), *self._environment(), *self._final()]) + "\n"

    def _base(self) -> list[str]:
        lines = [
            f"# The image of {quote(self.job, 'comment', 'job')}, made by {self._maker}.",
            "# `headway image` prints it. Change it through image.base, requirements and setup of the job file.",
            "",
            self._from,
        ]
        if self.setup:
            lines += ["# `setup` of the job file", *map(run_instruction, self.setup)]
        return lines

    @property
    def _maker(self) -> str:
        return f"Headway {quote(self.headway, 'comment', 'version')}"

    @property
    def _from(self) -> str:
        platform = quote(self.platform, "word", "the platform")
        return f"FROM --platform={platform} {quote(self.base, 'word', 'the base image (image.base, --base)')} AS base"

    @property
    def _wheel(self) -> str:
        return quote(self.wheel, "word", "the wheel's name")

    def _environment(self) -> list[str]:
        pip = f"{VENV_DIR}/bin/pip"
        lines = [
            "",
            "# A stage of its own: neither pip's options nor its leavings are shipped.",
            "FROM base AS environment",
            "ARG PIP_INDEX_URL",
            "ARG PIP_EXTRA_INDEX_URL",
            "ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
            "# Packages that the base brings (a torch built for its CUDA, say) are used, not installed again.",
            f"RUN python3 -m venv --system-site-packages {VENV_DIR}",
            "",
            "# Dependencies, in layers apart from code: built again only when these files change.",
        ]
        if self.requirements:
            file = quote(self.requirements, "shell", "requirements")
            lines += [
                "COPY requirements/yours/ /build/yours/",
                f"RUN {pip} install -r /build/yours/{file} \\",
                f" && {pip} list --format=freeze > /build/pinned.txt",
            ]
        constraints = " -c /build/pinned.txt" if self.requirements else ""
        return [
            *lines,
            "COPY requirements/headway.txt /build/",
            f"RUN {pip} install -r /build/headway.txt{constraints}",
        ]

    def _final(self) -> list[str]:
        labels = {"job": self.job, "version": self.headway, "code": self.code_sha256, "wheel": self.wheel_sha256}
        return [
            "",
            "FROM base",
            "# Any user may run it, also one without a name here: what is written to is open to all of them.",
            f"RUN install -d -m 1777 {WRITABLE_DIRS}",
            f"ENV PATH={VENV_DIR}/bin:$PATH HOME={HOME_DIR} USER=headway PYTHONUNBUFFERED=1",
            f"COPY --from=environment {VENV_DIR} {VENV_DIR}",
            "",
            "# Headway itself, from the file beside this one: never by name from an index.",
            f"COPY {self._wheel} /tmp/",
            f"RUN {VENV_DIR}/bin/pip install --no-cache-dir --no-index --no-deps /tmp/{self._wheel}",
            "",
            "# Your code comes last: a change of it costs one small layer.",
            f"COPY code/ {CODE_DIR}/",
            label_instruction({f"{LABEL_PREFIX}.{key}": value for key, value in labels.items()}),
            f"WORKDIR {CODE_DIR}",
            "USER 1000:1000",
            f"ENTRYPOINT {exec_form(['python3', '-m', SUPERVISOR])}",
        ]


def image_of_plan(plan: Plan, *, platform: str = PLATFORM) -> ImageSpec:
    """Return the image for a plan's containers, for a job that does not name a ready one."""
    wheel = plan.code.wheel, plan.code.wheel_sha256
    python = plan.environment["python"]
    return image_of_job(plan.job, plan.code.sha256, wheel, headway=plan.headway, python=python, platform=platform)


def image_of_job(
    job: Mapping[str, Any], code_sha256: str, wheel: tuple[str, str], *, headway: str, python: str, platform: str
) -> ImageSpec:
    """Return the image for a job before there is a plan. `wheel` is Headway's own: its name and its sha256."""
    image: Mapping[str, Any] = job.get("image", {})
    return ImageSpec(
        job=str(job["name"]),
        headway=headway,
        base=str(image.get("base") or _default_base(python)),
        platform=platform,
        setup=tuple(map(str, job.get("setup", ()))),
        requirements=PurePosixPath(job["requirements"]).as_posix() if job.get("requirements") else None,
        extras=extras(job),
        wheel=wheel[0],
        wheel_sha256=wheel[1],
        code_sha256=code_sha256,
        repository=image.get("repository"),
    )


def _default_base(python: str) -> str:
    """Return the image of the Python version that made the plan: exact runs need the same one."""
    major, minor, *_ = python.split(".")
    return f"python:{major}.{minor}-slim"
