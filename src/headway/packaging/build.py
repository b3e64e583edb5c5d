"""Build and push images with docker or podman. The digest of each pushed image is recorded on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, TargetError
from headway.core.platform import state_dir
from headway.packaging.context import context
from headway.packaging.dockerfile import Blueprint
from headway.packaging.engine import Engine, EngineError, NotFound
from headway.storage import open_store

if TYPE_CHECKING:
    from headway.core.plan import Plan

CONTEXT = "{CONTEXT}"  # placeholder for the build context's folder
# Passed by name only: the values come from this shell, and are neither in a plan nor in the final image.
_PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def reference(plan: Plan, image: Blueprint) -> str:
    """Return the image for requests: the job's ready image, else the pushed digest, else a name by content."""
    ready = plan.job.get("image", {}).get("uri")
    return str(ready) if ready else pushed(image) or image.name


def pushed(image: Blueprint) -> str | None:
    """Return REPOSITORY@sha256:… if this machine has pushed exactly this image; else None."""
    if image.repository is None:
        return None
    try:
        known = json.loads(_record(image).read_bytes())
    except (OSError, ValueError):  # never pushed from here, or a damaged record: use the tag, which is less strict
        return None
    uri = known.get("uri") if isinstance(known, dict) else None
    return uri if isinstance(uri, str) and uri.startswith(f"{image.repository}@sha256:") else None


def build_command(command: str, image: Blueprint) -> list[str]:
    """Return the exact command that builds it. Pure."""
    passed = [word for name in _PASSED_ON for word in ("--build-arg", name)]
    # --force-rm: without BuildKit, a build that fails would leave a container behind.
    return [command, "build", "--force-rm", "--platform", image.platform, "--tag", image.name, *passed, CONTEXT]


def build(engine: Engine, command: str, image: Blueprint, outputs: str) -> str:
    """Build the image unless it exists; return its name."""
    if not present(engine, command, image.name):
        with context(image, outputs) as folder:
            call = [str(folder) if word == CONTEXT else word for word in build_command(command, image)]
            engine(call, within_s=None)
    return image.name


def push(engine: Engine, command: str, image: Blueprint, outputs: str) -> str:
    """Build the image, push it to its repository, and return the reference by digest."""
    if image.repository is None:
        fix = "write image: {repository: LOCATION-docker.pkg.dev/PROJECT/REPO/NAME} into the job file"
        raise BadInput("the job does not say where its image goes", where="image.repository", fix=fix)
    name = build(engine, command, image, outputs)
    engine([command, "push", name], within_s=None)
    uri = digest_of(engine, command, image)
    record = _record(image)
    body = json.dumps({"uri": uri, "name": name}, sort_keys=True) + "\n"
    open_store(str(record.parent)).write(record.name, body.encode())
    return uri


def pull(engine: Engine, command: str, name: str, platform: str) -> None:
    """Pull a ready image unless it is present."""
    if not present(engine, command, name):
        engine([command, "pull", "--platform", platform, name], within_s=None)


def present(engine: Engine, command: str, name: str) -> bool:
    try:
        engine([command, "image", "inspect", "--format", "{{.Id}}", name])
        return True
    except NotFound:
        return False
    except EngineError as error:
        if re.search(r"image not known|failed to find image", error.said):  # podman's messages for "not found"
            return False
        raise


def digest_of(engine: Engine, command: str, image: Blueprint) -> str:
    said = engine([command, "image", "inspect", image.name])
    found: Sequence[Mapping[str, Any]] = json.loads(said)
    for digest in found[0].get("RepoDigests") or []:
        if str(digest).startswith(f"{image.repository}@sha256:"):
            return str(digest)
    raise TargetError(f"the registry gave no digest for {image.name}", fix=f"{command} push {image.name}")


def _record(image: Blueprint) -> Path:
    return state_dir() / "images" / f"{image.tag}.json"
