"""Check image references before anything is built or pushed. Makes no requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headway.core.errors import Problem

ARTIFACT_REGISTRY = "LOCATION-docker.pkg.dev/PROJECT/REPO/NAME"
_MAX_LENGTH = 255 - len(":") - 12  # a registry's limit, less the tag that Headway adds

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::\d{1,5})?"
_TAG, _DIGEST = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(rf"(?:(?P<host>{_HOST})/)?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@{_DIGEST})?")
_LOCATION = re.compile(r"[a-z]+(?:-[a-z]+\d)?")  # us, europe, us-east1
GOOGLE_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_FOLDER = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")


def problems(image: Mapping[str, Any], name: str) -> list[Problem]:
    """Return the problems of a job's `image`, each with a fix. `name` is the job's, for the examples."""
    found = [_reference_problem(key, str(image[key])) for key in ("base", "uri") if image.get(key)]
    if image.get("repository"):
        found.append(_repository_problem(str(image["repository"]), name))
    return [problem for problem in found if problem is not None]


def _reference_problem(key: str, text: str) -> Problem | None:
    if _REFERENCE.fullmatch(text):
        return None
    example = "python:3.12-slim" if key == "base" else "registry.example.com/team/trainer:v1"
    return Problem(what=f"'{text[:100]}' cannot name an image", where=f"image.{key}", fix=_suggestion(text) or example)


def _repository_problem(text: str, name: str) -> Problem | None:
    """Check a repository to push to: a registry's host or user and a path; Headway adds the tag or digest."""
    if re.match(r"[a-z]+-?[a-z0-9]*-docker\.pkg\.dev(/|$)", text):
        return _artifact_registry_problem(text, name)
    bare = re.sub(rf"(?::{_TAG})?(?:@{_DIGEST})?$", "", text) if "/" in text else text
    if bare != text and _REFERENCE.fullmatch(bare):
        return _problem(f"'{text}' has a tag or digest, but Headway adds its own tag", f"repository: {bare}")
    if not _REFERENCE.fullmatch(text):
        return _problem(f"'{text[:100]}' cannot name an image", _suggestion(text) or f"repository: {ARTIFACT_REGISTRY}")
    if "/" not in text:
        return _problem(f"'{text}' does not name a registry", f"repository: {ARTIFACT_REGISTRY}")
    return _too_long(text)


def _artifact_registry_problem(text: str, name: str) -> Problem | None:
    host, *parts = text.split("/")
    location = host.removesuffix("-docker.pkg.dev")
    expected = f"as in {ARTIFACT_REGISTRY}: {location}-docker.pkg.dev/my-project/my-repo/{name}"
    if len(parts) < 3 or not all(parts):
        message = ("PROJECT", "REPO", "NAME")[min(2, len([part for part in parts if part]))]
        return _problem(f"'{text}' lacks its {message}", expected)
    project, folder, *image = parts
    checks = (
        (_LOCATION, location, "a location such as us or us-east1"),
        (GOOGLE_PROJECT, project, "a project: 6 to 30 lower case letters, digits and dashes"),
        (_FOLDER, folder, "a repository: at most 63 lower case letters, digits and dashes"),
    )
    for pattern, part, meaning in checks:
        if not pattern.fullmatch(part):
            return _problem(f"'{part}' in '{text}' is not {meaning}", expected)
    if re.search(r"[:@]", image[-1]):
        return _problem(f"'{text}' has a tag or digest, but Headway adds its own tag", expected)
    if not _REFERENCE.fullmatch(text):
        return _problem(
            f"'{'/'.join(image)}' in '{text}' is not a valid image name: lower case letters and digits", expected
        )
    return _too_long(text)


def _too_long(text: str) -> Problem | None:
    return _problem(f"a name of {len(text)} characters", f"at most {_MAX_LENGTH}") if len(text) > _MAX_LENGTH else None


def _problem(what: str, fix: str) -> Problem:
    return Problem(what=what, where="image.repository", fix=f"write {fix}")


def _suggestion(text: str) -> str:
    """Guess the intended reference: without scheme or trailing slash, in lower case."""
    guess = re.sub(r"^[a-z]+://", "", text.strip()).rstrip("/")
    guess = guess if _REFERENCE.fullmatch(guess) else guess.lower()
    return guess if guess != text and _REFERENCE.fullmatch(guess) else ""
