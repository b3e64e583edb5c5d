"""Build an image from the project's own Dockerfile, with the files that are sent as its context.

The image is named by the content of the Dockerfile and of its context, so that a change of either builds another one.
Headway is not part of it: a target brings Headway into such an image as into any ready one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.packaging.selection import DOCKERIGNORE

if TYPE_CHECKING:
    from headway.packaging.code import Package
    from headway.spec import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnImage:
    """An image to build from the project's own Dockerfile. Equal content has the same name."""

    job: str
    platform: str
    file: str  # the Dockerfile, relative to the project's folder
    context: str  # the folder of its build context, likewise
    text: str
    context_sha256: str
    repository: str | None
    code_sha256: str  # the archive that holds the files; not part of the name

    @property
    def tag(self) -> str:
        """Content hash of the Dockerfile and its context."""
        parts = [self.file, self.context, self.platform, self.text, self.context_sha256]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.repository or f'headway/{self.job}'}:{self.tag}"

    def dockerfile(self) -> str:
        return self.text

    def build_paths(self, folder: str) -> tuple[str, str]:
        """Return the Dockerfile and the context in a folder that holds the project."""
        return f"{folder}/{self.file}", folder if self.context == "." else f"{folder}/{self.context}"


def own_image(job: Mapping[str, Any], code_sha256: str, platform: str) -> OwnImage | None:
    """Return the image of a recorded job that names its own Dockerfile; None for other jobs."""
    image: Mapping[str, Any] = job.get("image") or {}
    if not image.get("dockerfile"):
        return None
    return OwnImage(
        job=str(job["name"]),
        platform=str(image.get("platform") or platform),
        file=PurePosixPath(str(image["dockerfile"])).as_posix(),
        context=PurePosixPath(str(image.get("context") or ".")).as_posix(),
        text=str(image.get("dockerfile_text") or ""),
        context_sha256=str(image.get("context_sha256") or ""),
        repository=image.get("repository"),
        code_sha256=code_sha256,
    )


def with_content(job: Job, packed: Package) -> Job:
    """Return the job with the text of its Dockerfile and the hash of its context, for a plan."""
    assert job.image.dockerfile
    root = Path(job.root)
    text = (root / job.image.dockerfile).read_text(encoding="utf-8", errors="replace")
    digest = hashlib.sha256()
    for name in context_files(job, packed):
        mode = "x" if os.access(root / name, os.X_OK) else "-"
        digest.update(f"{name}\0{mode}{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    image = replace(job.image, dockerfile_text=text, context_sha256=digest.hexdigest())
    return replace(job, image=image)


def context_files(job: Job, packed: Package) -> list[str]:
    """Return the sent files of the build context, relative to the project's folder."""
    context = PurePosixPath(job.image.context)
    inside = [name for name, _ in packed.files if context in PurePosixPath(name).parents]
    return [name for name in inside if name != DOCKERIGNORE]


def problems(job: Job) -> Iterator[Problem]:
    """Yield why a Dockerfile cannot be built, from the project's folder alone. For targets that use images."""
    from headway.packaging.code import package

    name, root = job.image.dockerfile, Path(job.root)
    if not name:
        return
    if not (root / name).is_file():
        fix = "fix the path in the job file"
        yield Problem(what=f"there is no file {root / name}", where="image.dockerfile", fix=fix)
    elif not (root / job.image.context).is_dir():
        what = f"there is no folder {root / job.image.context}"
        yield Problem(what=what, where="image.context", fix="name a folder, relative to the job file")
    else:
        yield from _copy_problems(job, package(job))


def _copy_problems(job: Job, packed: Package) -> Iterator[Problem]:
    """Yield the sources of COPY and ADD of which no file is sent: the build would end there."""
    assert job.image.dockerfile
    context = PurePosixPath(job.image.context)
    files = [PurePosixPath(name).relative_to(context).parts for name in context_files(job, packed)]
    text = (Path(job.root) / job.image.dockerfile).read_text(encoding="utf-8", errors="replace")
    for number, source in copied_sources(text):
        wanted = PurePosixPath(source.lstrip("/")).parts
        if any(_is_below(file, wanted) for file in files):
            continue
        where, path = f"{job.image.dockerfile}:{number}", (context / source.lstrip("/")).as_posix()
        if any(Path(job.root).glob(path)):
            what = f"{path} is not sent, so the image cannot be built"
            yield Problem(what=what, where=where, fix=f"echo '!{path}' >> .headwayignore   (sends it)")
        else:
            folder = "the job file's folder" if context == PurePosixPath(".") else f"{context}/"
            yield Problem(what=f"there is no {source} in {folder}", where=where, fix="fix the line, or image.context")


def copied_sources(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and source of every COPY and ADD that reads plain paths of the build context."""
    for number, line in _instructions(text):
        words = line.split(None, 1)
        if len(words) < 2 or words[0].upper() not in ("COPY", "ADD"):
            continue
        operands = _operands(words[1])
        if any(word.startswith("--from") for word in operands) or "<<" in line:
            continue
        paths = [word for word in operands if not word.startswith("--")][:-1]
        yield from ((number, path) for path in paths if not re.search(r"\$|://|^git@|(^|/)\.\.(/|$)", path))


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every instruction, with continuation lines joined and comments removed."""
    start, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start if parts else number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield start, " ".join(parts)
            parts = []


def _operands(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        try:
            return [str(word) for word in json.loads(text)]
        except ValueError:
            return []
    return text.split()


def _is_below(file: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether a file is what a pattern names, or below it. Components match as in a shell."""
    return len(file) >= len(wanted) and all(map(fnmatchcase, file, wanted))
