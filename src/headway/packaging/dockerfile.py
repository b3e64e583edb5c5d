"""The specification of an image as one value, from which the Dockerfile and a content-based name are derived. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headway.core.quoting import CONTROL_CHARACTERS
from headway.core.quoting import quote_for_dockerfile as quote
from headway.packaging import dependencies
from headway.packaging.dependencies import LIST_FILE
from headway.packaging.own_dockerfile import OwnImage, own_image
from headway.packaging.requirements import extras
from headway.packaging.torch_builds import accelerator_of, torch_for

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Labels


def label_instruction(values: dict[str, str]) -> str:
    """Render one LABEL instruction."""
    pairs = [f"{quote(key, 'word', 'a label')}={quote(value, 'label', key)}" for key, value in values.items()]
    return "LABEL " + " \\\n      ".join(pairs)


def run_instruction(command: str) -> str:
    """Render a shell command as one RUN instruction, in exec form where a plain line would mean something else."""
    command = command.strip()
    multi_line = CONTROL_CHARACTERS.search(command.replace("\t", " ")) or command.endswith("\\") or "<<" in command
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
    listed: tuple[str, ...] = ()  # requirements of the project's pyproject.toml
    install: bool = False  # whether the project itself is installed
    torch: str = ""  # the versions that have kernels for the accelerator, if not all have

    @property
    def tag(self) -> str:
        """Content hash: any change of code, requirements or Headway gives another image."""
        fields = asdict(self)
        kept = {name: fields[name] for name in fields if fields[name] or name not in ("listed", "install", "torch")}
        text = json.dumps([kept, self.dockerfile()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.repository or f'headway/{self.job}'}:{self.tag}"

    def build_paths(self, folder: str) -> tuple[str, str]:
        """Return the Dockerfile and the context in the folder of the build context."""
        return f"{folder}/Dockerfile", folder

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
            "# A separate stage: pip's options and caches do not become part of the image.",
            "FROM base AS environment",
            "ARG PIP_INDEX_URL",
            "ARG PIP_EXTRA_INDEX_URL",
            "ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
            "# Packages of the base image, such as a torch built for its CUDA, are used, not installed again.",
            f"RUN python3 -m venv --system-site-packages {VENV_DIR}",
            "",
            "# Dependencies, in layers of their own: built again only when these files change.",
        ]
        own = self._own_requirements(pip)
        constraints = " -c /build/pinned.txt" if own else ""
        return [
            *lines,
            *own,
            "COPY requirements/headway.txt /build/",
            f"RUN {pip} install -r /build/headway.txt{constraints}",
        ]

    def _own_requirements(self, pip: str) -> list[str]:
        """Install what the project needs, and pin it for what Headway adds. The project itself comes last."""
        lines, pin = [], f" && {pip} list --format=freeze > /build/pinned.txt"
        if self.requirements:
            file = quote(self.requirements, "shell", "requirements")
            lines += ["COPY requirements/yours/ /build/yours/", f"RUN {pip} install -r /build/yours/{file} \\", pin]
        if self.listed:
            lines += [f"COPY requirements/{LIST_FILE} /build/", f"RUN {pip} install -r /build/{LIST_FILE} \\", pin]
        if self.install:
            lines += ["COPY code/ /build/project/", f"RUN {pip} install /build/project \\", pin]
        return lines

    def _final(self) -> list[str]:
        labels = {"job": self.job, "version": self.headway, "code": self.code_sha256, "wheel": self.wheel_sha256}
        return [
            "",
            "FROM base",
            "# Any user id may run it, also one without an entry here: these folders are writable by all.",
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


AnyImage = ImageSpec | OwnImage  # what can be built: from the generated Dockerfile, or from the project's own


def image_of_plan(plan: Plan, *, platform: str = PLATFORM) -> AnyImage:
    """Return the image for a plan's containers, for a job that does not name a ready one."""
    wheel = plan.code.wheel, plan.code.wheel_sha256
    python = plan.environment["python"]
    return image_of_job(plan.job, plan.code.sha256, wheel, headway=plan.headway, python=python, platform=platform)


def image_of_job(
    job: Mapping[str, Any], code_sha256: str, wheel: tuple[str, str], *, headway: str, python: str, platform: str
) -> AnyImage:
    """Return the image for a job before there is a plan. `wheel` is Headway's own: its name and its sha256."""
    own = own_image(job, code_sha256, platform)
    if own is not None:
        return own
    image, needed = job.get("image") or {}, dependencies.of_record(job)
    return ImageSpec(
        job=str(job["name"]),
        headway=headway,
        base=str(image.get("base") or _default_base(python)),
        platform=str(image.get("platform") or platform),
        setup=tuple(map(str, job.get("setup", ()))),
        requirements=needed.requirements,
        listed=needed.listed,
        install=needed.install,
        torch=torch_for(accelerator_of(job)),
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
