"""The specification of an image as one value, from which the Dockerfile and a content-based name are derived. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from headway.packaging.ignore import dockerignore
from headway.packaging.quoting import exec_form, labels, quoted, run
from headway.packaging.requirements import extras

if TYPE_CHECKING:
    from headway.core.plan import Plan

PLATFORM = "linux/amd64"
CODE, HOME, ENVIRONMENT = "/headway/code", "/home/headway", "/opt/headway"
NODE = "/headway/node"  # a run's files on its machine: spool, files, resume
OPEN = f"{CODE} {NODE} {HOME} {HOME}/.cache {HOME}/.config"
LABEL = "headway"  # the prefix of every label
SUPERVISOR = "headway.runtime.worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
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
            f"# The image of {quoted(self.job, 'comment', 'job')}, made by {self._maker}.",
            "# `headway image` prints it. Change it through image.base, requirements and setup of the job file.",
            "",
            self._from,
        ]
        if self.setup:
            lines += ["# `setup` of the job file", *map(run, self.setup)]
        return lines

    @property
    def _maker(self) -> str:
        return f"Headway {quoted(self.headway, 'comment', 'version')}"

    @property
    def _from(self) -> str:
        platform = quoted(self.platform, "word", "the platform")
        return f"FROM --platform={platform} {quoted(self.base, 'word', 'the base image (image.base, --base)')} AS base"

    @property
    def _wheel(self) -> str:
        return quoted(self.wheel, "word", "the wheel's name")

    def _environment(self) -> list[str]:
        pip = f"{ENVIRONMENT}/bin/pip"
        lines = [
            "",
            "# A stage of its own: neither pip's options nor its leavings are shipped.",
            "FROM base AS environment",
            "ARG PIP_INDEX_URL",
            "ARG PIP_EXTRA_INDEX_URL",
            "ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
            "# Packages that the base brings (a torch built for its CUDA, say) are used, not installed again.",
            f"RUN python3 -m venv --system-site-packages {ENVIRONMENT}",
            "",
            "# Dependencies, in layers apart from code: built again only when these files change.",
        ]
        if self.requirements:
            file = quoted(self.requirements, "shell", "requirements")
            lines += [
                "COPY requirements/yours/ /build/yours/",
                f"RUN {pip} install -r /build/yours/{file} \\",
                f" && {pip} list --format=freeze > /build/pinned.txt",
            ]
        held = " -c /build/pinned.txt" if self.requirements else ""
        return [
            *lines,
            "COPY requirements/headway.txt /build/",
            f"RUN {pip} install -r /build/headway.txt{held}",
        ]

    def _final(self) -> list[str]:
        told = {"job": self.job, "version": self.headway, "code": self.code_sha256, "wheel": self.wheel_sha256}
        return [
            "",
            "FROM base",
            "# Any user may run it, also one without a name here: what is written to is open to all of them.",
            f"RUN install -d -m 1777 {OPEN}",
            f"ENV PATH={ENVIRONMENT}/bin:$PATH HOME={HOME} USER=headway PYTHONUNBUFFERED=1",
            f"COPY --from=environment {ENVIRONMENT} {ENVIRONMENT}",
            "",
            "# Headway itself, from the file beside this one: never by name from an index.",
            f"COPY {self._wheel} /tmp/",
            f"RUN {ENVIRONMENT}/bin/pip install --no-cache-dir --no-index --no-deps /tmp/{self._wheel}",
            "",
            "# Your code comes last: a change of it costs one small layer.",
            f"COPY code/ {CODE}/",
            labels({f"{LABEL}.{key}": value for key, value in told.items()}),
            f"WORKDIR {CODE}",
            "USER 1000:1000",
            f"ENTRYPOINT {exec_form(['python3', '-m', SUPERVISOR])}",
        ]


def of_plan(plan: Plan, *, platform: str = PLATFORM) -> Blueprint:
    """Return the image for a plan's containers, for a job that does not name a ready one."""
    wheel = plan.code.wheel, plan.code.wheel_sha256
    python = plan.environment["python"]
    return of_parts(plan.job, plan.code.sha256, wheel, headway=plan.headway, python=python, platform=platform)


def of_parts(
    job: Mapping[str, Any], code_sha256: str, wheel: tuple[str, str], *, headway: str, python: str, platform: str
) -> Blueprint:
    """Return the image for a job before there is a plan. `wheel` is Headway's own: its name and its sha256."""
    image: Mapping[str, Any] = job.get("image", {})
    return Blueprint(
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
