"""Check image references before anything is built or pushed. Makes no requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headway.core.errors import Problem

ARTIFACT_REGISTRY = "LOCATION-docker.pkg.dev/PROJECT/REPO/NAME"
_LONGEST = 255 - len(":") - 12  # a registry's limit, less the tag that Headway adds

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::\d{1,5})?"
_TAG, _DIGEST = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(rf"(?:(?P<host>{_HOST})/)?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@{_DIGEST})?")
_LOCATION = re.compile(r"[a-z]+(?:-[a-z]+\d)?")  # us, europe, us-east1
GOOGLE_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_FOLDER = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")


def problems(image: Mapping[str, Any], name: str) -> list[Problem]:
    """Return the problems of a job's `image`, each with a fix. `name` is the job's, for the examples."""
    found = [_of_reference(key, str(image[key])) for key in ("base", "uri") if image.get(key)]
    if image.get("repository"):
        found.append(_of_repository(str(image["repository"]), name))
    return [problem for problem in found if problem is not None]


def _of_reference(key: str, text: str) -> Problem | None:
    if _REFERENCE.fullmatch(text):
        return None
    example = "python:3.12-slim" if key == "base" else "registry.example.com/team/trainer:v1"
    return Problem(what=f"'{text[:100]}' cannot name an image", where=f"image.{key}", fix=_mended(text) or example)


def _of_repository(text: str, name: str) -> Problem | None:
    """Check a repository to push to: a registry's host or user and a path; Headway adds the tag or digest."""
    if re.match(r"[a-z]+-?[a-z0-9]*-docker\.pkg\.dev(/|$)", text):
        return _of_artifact_registry(text, name)
    bare = re.sub(rf"(?::{_TAG})?(?:@{_DIGEST})?$", "", text) if "/" in text else text
    if bare != text and _REFERENCE.fullmatch(bare):
        return _bad(f"'{text}' has a tag or digest, and Headway gives it one by content", f"repository: {bare}")
    if not _REFERENCE.fullmatch(text):
        return _bad(f"'{text[:100]}' cannot name an image", _mended(text) or f"repository: {ARTIFACT_REGISTRY}")
    if "/" not in text:
        return _bad(f"'{text}' does not say which registry it is in", f"repository: {ARTIFACT_REGISTRY}")
    return _too_long(text)


def _of_artifact_registry(text: str, name: str) -> Problem | None:
    host, *parts = text.split("/")
    location = host.removesuffix("-docker.pkg.dev")
    wanted = f"as in {ARTIFACT_REGISTRY}: {location}-docker.pkg.dev/my-project/my-repo/{name}"
    if len(parts) < 3 or not all(parts):
        said = ("PROJECT", "REPO", "NAME")[min(2, len([part for part in parts if part]))]
        return _bad(f"'{text}' lacks its {said}", wanted)
    project, folder, *image = parts
    checks = (
        (_LOCATION, location, "a location such as us or us-east1"),
        (GOOGLE_PROJECT, project, "a project: 6 to 30 lower case letters, digits and dashes"),
        (_FOLDER, folder, "a repository: at most 63 lower case letters, digits and dashes"),
    )
    for pattern, part, words in checks:
        if not pattern.fullmatch(part):
            return _bad(f"'{part}' in '{text}' is not {words}", wanted)
    if re.search(r"[:@]", image[-1]):
        return _bad(f"'{text}' has a tag or digest, and Headway gives it one by content", wanted)
    if not _REFERENCE.fullmatch(text):
        return _bad(f"'{'/'.join(image)}' in '{text}' is not an image's name: lower case letters and digits", wanted)
    return _too_long(text)


def _too_long(text: str) -> Problem | None:
    return _bad(f"a name of {len(text)} characters", f"at most {_LONGEST}") if len(text) > _LONGEST else None


def _bad(what: str, fix: str) -> Problem:
    return Problem(what=what, where="image.repository", fix=f"write {fix}")


def _mended(text: str) -> str:
    """Guess what was meant: without scheme or trailing slash, in lower case."""
    guess = re.sub(r"^[a-z]+://", "", text.strip()).rstrip("/")
    guess = guess if _REFERENCE.fullmatch(guess) else guess.lower()
    return guess if guess != text and _REFERENCE.fullmatch(guess) else ""
