"""Build and push images with docker or podman. The digest of each pushed image is recorded on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, TargetError
from headway.core.platform import state_dir
from headway.packaging import image_reuse
from headway.packaging.context import context
from headway.packaging.dockerfile import AnyImage
from headway.packaging.engine import Engine, EngineError, NotFound
from headway.storage import open_store

if TYPE_CHECKING:
    from headway.core.plan import Plan

CONTEXT = "{CONTEXT}"  # placeholder for the build context's folder
_PROBE_TIMEOUT_S = 20.0
# Passed by name only: the values come from this shell, and are neither in a plan nor in the final image.
_FORWARDED_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def reference(plan: Plan, image: AnyImage) -> str:
    """Return the image for requests: the job's ready image, else the pushed digest, else a name by content."""
    ready = plan.job.get("image", {}).get("uri")
    return str(ready) if ready else read_push_record(image) or image.name


def read_push_record(image: AnyImage) -> str | None:
    """Return REPOSITORY@sha256:… if this machine has pushed exactly this image; else None."""
    if image.repository is None:
        return None
    try:
        record = json.loads(_record_key(image).read_bytes())
    except (OSError, ValueError):  # never pushed from here, or a damaged record: use the tag, which is less strict
        return None
    uri = record.get("uri") if isinstance(record, dict) else None
    return uri if isinstance(uri, str) and uri.startswith(f"{image.repository}@sha256:") else None


def build_command(command: str, image: AnyImage) -> list[str]:
    """Return the exact command that builds it. Pure."""
    build_args = [word for name in _FORWARDED_VARIABLES for word in ("--build-arg", name)]
    # --force-rm: without BuildKit, a build that fails would leave a container behind.
    file, folder = image.build_paths(CONTEXT)
    named = [] if file == f"{folder}/Dockerfile" else ["--file", file]
    words = [command, "build", "--force-rm", "--platform", image.platform, "--tag", image.name]
    return [*words, *named, *build_args, folder]


def build(engine: Engine, command: str, image: AnyImage, outputs: str) -> str:
    """Build the image unless it exists; return its name."""
    if not is_present(engine, command, image.name):
        with context(image, outputs) as folder:
            command_line = [word.replace(CONTEXT, str(folder)) for word in build_command(command, image)]
            engine(command_line, within_s=None)
    return image.name


def push(engine: Engine, command: str, image: AnyImage, outputs: str) -> str:
    """Build the image, push it to its repository, and return the reference by digest."""
    if image.repository is None:
        fix = "write image: {repository: LOCATION-docker.pkg.dev/PROJECT/REPO/NAME} into the job file"
        raise BadInput("the job names no repository for its image", where="image.repository", fix=fix)
    name = build(engine, command, image, outputs)
    engine([command, "push", name], within_s=None)
    uri = digest_of(engine, command, image)
    record = _record_key(image)
    body = json.dumps({"uri": uri, "name": name}, sort_keys=True) + "\n"
    open_store(str(record.parent)).write(record.name, body.encode())
    image_reuse.record_push(image, uri)
    return uri


def find_engine(engine: Engine) -> str | None:
    """Return the command, docker or podman, whose daemon responds on this machine; None if neither does."""
    for command in ("docker", "podman"):
        try:
            engine([command, "version", "--format", "{{.Server.Version}}"], within_s=_PROBE_TIMEOUT_S)
            return command
        except EngineError:
            continue
    return None


def pull_image(engine: Engine, command: str, name: str, platform: str) -> None:
    """Pull a ready image unless it is present."""
    if not is_present(engine, command, name):
        engine([command, "pull", "--platform", platform, name], within_s=None)


def is_present(engine: Engine, command: str, name: str) -> bool:
    try:
        engine([command, "image", "inspect", "--format", "{{.Id}}", name])
        return True
    except NotFound:
        return False
    except EngineError as error:
        if re.search(r"image not known|failed to find image", error.output):  # podman's messages for "not found"
            return False
        raise


def digest_of(engine: Engine, command: str, image: AnyImage) -> str:
    output = engine([command, "image", "inspect", image.name])
    found: Sequence[Mapping[str, Any]] = json.loads(output)
    for digest in found[0].get("RepoDigests") or []:
        if str(digest).startswith(f"{image.repository}@sha256:"):
            return str(digest)
    raise TargetError(f"the registry gave no digest for {image.name}", fix=f"{command} push {image.name}")


def _record_key(image: AnyImage) -> Path:
    return state_dir() / "images" / f"{image.tag}.json"
