"""Requirements of an image: the user's own file first, then what Headway needs, constrained to its versions."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from headway.core.errors import BadPlan, Problem

_OPTION = re.compile(r"(-r|--requirement|-c|--constraint|-e|--editable)(?:[ =]\s*|(?=\S))(\S+)")
_PASSWORD = re.compile(r"://[^/\s@]+:[^/\s@$]+@")  # not ${NAME}: pip reads that from the environment
_HEADWAY_NAME = re.compile(r"headway\s*(\[|[<>=!~;@ ]|$)", re.IGNORECASE)
_EXTRA = re.compile(r"""\s*(?:and\s+)?extra\s*==\s*['"]([\w-]+)['"](?:\s+and)?\s*""")
_SCHEMES = {"gs": "gcp", "gcp-sm": "gcp", "s3": "aws", "aws-sm": "aws", "az": "azure"}


def extras(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pip extras of Headway that a job needs where it trains.

    A project with requirements, a pyproject.toml or a setup.py lists what it trains with; one without gets torch.
    """
    data = job.get("data", {})
    sources = [str(source["source"]) for part in ("train", "val", "test") for source in data.get(part, ())]
    secrets = [str(secret["ref"]) for secret in job.get("secrets", {}).values()]
    urls = [str(job["outputs"]), str(job.get("export", {}).get("to") or ""), *sources, *secrets]
    names = {_SCHEMES.get(url.partition("://")[0], "") for url in urls if "://" in url}
    if job.get("log_to"):
        names.add("loggers")
    if job.get("recipe"):
        names |= {"train", *_recipe_extras(str(job["recipe"]))}
        names |= {"data"} if any(not source.startswith("builtin:") for source in sources) else set()
        names |= {"efficientnet"} if "efficientnet_lite0" in job.get("config", {}).values() else set()
    elif not job.get("requirements") and not (job.get("dependencies") or {}).get("source"):
        names |= {"train"}
    return tuple(sorted(names - {""}))


def _recipe_extras(name: str) -> tuple[str, ...]:
    from headway.plugins import RECIPES

    return RECIPES[name].extras if name in RECIPES else ()


def wheel_requirements(wheel: Path, extra_names: Iterable[str]) -> str:
    """Render a requirements file with the wheel's dependencies, for itself and for the wanted extras."""
    extra_names = set(extra_names)
    lines = [f"# Requirements of Headway itself{', for ' + ', '.join(sorted(extra_names)) if extra_names else ''}."]
    for line in _metadata(wheel):
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if (extra and extra[1] not in extra_names) or _HEADWAY_NAME.match(requirement.strip()):
            continue
        marker = _EXTRA.sub(" ", marker).strip()
        lines.append(requirement.strip() + (f"; {marker}" if marker else ""))
    return "\n".join(dict.fromkeys(lines)) + "\n"


def problems(root: Path, name: str) -> list[Problem]:
    """Return the lines that would fail in an image, or be a mistake there. An unreadable file is a problem too."""
    found: list[Problem] = []
    for file in _collect_nested(root, PurePosixPath(name), found):
        for number, line in enumerate(_lines(root / file), start=1):
            problem = line_problem(line, f"{file}:{number}")
            if problem is not None:
                found.append(problem)
    return found


def files_present(root: Path, name: str) -> list[PurePosixPath]:
    """Return the file and those it includes, relative to `root`, without those that are missing or outside it."""
    return list(_collect_nested(root, PurePosixPath(name), []))


def files(root: Path, name: str) -> list[PurePosixPath]:
    """Return the file and those it includes, relative to `root`. Raises BadPlan if one is missing."""
    found: list[Problem] = []
    listed = list(_collect_nested(root, PurePosixPath(name), found))
    if found:
        raise BadPlan(str(found[0]), fix="headway plan")
    return listed


def line_problem(line: str, where: str) -> Problem | None:
    """Return why a requirement would fail in an image, or be a mistake there; None if it is good."""
    option = _OPTION.match(line)
    if _PASSWORD.search(line):
        what = "everyone who can pull the image could read a password in a requirements file"
        return Problem(
            what=what, where=where, fix="export PIP_INDEX_URL=… instead: pip uses it, and the image does not contain it"
        )
    if _HEADWAY_NAME.match(line):
        what = "Headway is installed from its own wheel: an index may contain another project with that name"
        return Problem(what=what, where=where, fix="remove the line")
    if (option and option[1] in ("-e", "--editable")) or line.startswith((".", "/", "file:")) or " @ file:" in line:
        what = "a package on this machine's disk is not available when the image is built"
        return Problem(what=what, where=where, fix="list its requirements instead: the code itself is uploaded")
    return None


def _collect_nested(root: Path, name: PurePosixPath, found: list[Problem]) -> Iterator[PurePosixPath]:
    """Yield the file and those it includes, each once, in order."""
    waiting, seen = [name], set()
    while waiting:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        if ".." in file.parts or file.is_absolute() or not (root / file).is_file():
            what = "is outside the job's folder" if ".." in file.parts or file.is_absolute() else "is not there"
            found.append(
                Problem(what=f"{file} {what}", where="requirements", fix="fix the path, or put its lines into one file")
            )
            continue
        yield file
        for line in _lines(root / file):
            option = _OPTION.match(line)
            if option and option[1] in ("-r", "--requirement", "-c", "--constraint") and "://" not in option[2]:
                waiting.append(_relative_path(file.parent, option[2]))


def _relative_path(folder: PurePosixPath, name: str) -> PurePosixPath:
    """Normalize the path of an included file: if it still begins with `..`, it is outside the folder."""
    parts: list[str] = []
    for part in (folder / name).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines without comments, with backslash continuations joined."""
    text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for line in text.splitlines():
        yield re.sub(r"(^|\s)#.*$", "", line).strip()


def _metadata(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as content:
        name = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        for line in content.read(name).decode().splitlines():
            if not line:
                return  # the description follows
            if line.startswith("Requires-Dist:"):
                yield line.partition(":")[2].strip()
