"""The container image that serves a bundle: its Dockerfile, build context and content-based name."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.quoting import quote_for_dockerfile as quote
from headway.packaging import requirements
from headway.packaging.build import build_command, digest_of, is_present
from headway.packaging.dockerfile import (
    HOME_DIR,
    LABEL_PREFIX,
    PLATFORM,
    VENV_DIR,
    ImageSpec,
    exec_form,
    label_instruction,
)
from headway.plugins import require_recipe
from headway.serving.deploy.model import service_name

if TYPE_CHECKING:
    from headway.bundle.format import Bundle, Record
    from headway.packaging.engine import Engine

BUNDLE = "/headway/bundle"
PORT = 8080
# torch's default build includes gigabytes of CUDA, which are useless on a machine without a GPU.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingImage(ImageSpec):
    """Image of a model server.

    `code_sha256` is the bundle's hash; without a bundle it serves the one at $AIP_STORAGE_URI.
    """

    recipe: str
    holds_bundle: bool
    gpu: bool = False

    def _base(self) -> list[str]:
        what = f"{self.job} ({self.recipe})" if self.holds_bundle else "any bundle, from $AIP_STORAGE_URI"
        return [
            f"# A server for {quote(what, 'comment', 'bundle')}, made by {self._maker}.",
            "# `headway serve --image` prints it. It listens on $PORT, or on Vertex AI's $AIP_HTTP_PORT.",
            "",
            self._from,
        ]

    def _final(self) -> list[str]:
        labels = {"bundle": self.job, "recipe": self.recipe, "version": self.headway, "wheel": self.wheel_sha256}
        model = [
            "",
            "# The model is the last layer: a new model replaces only that. Its checksums are verified on load.",
            f"COPY bundle/ {BUNDLE}/",
        ]
        return [
            "",
            "FROM base",
            f"RUN install -d -m 1777 {HOME_DIR} {HOME_DIR}/.cache",
            f"ENV PATH={VENV_DIR}/bin:$PATH HOME={HOME_DIR} PYTHONUNBUFFERED=1 PORT={PORT}",
            f"COPY --from=environment {VENV_DIR} {VENV_DIR}",
            "",
            "# Headway itself, from the wheel in this folder, never from a package index.",
            f"COPY {self._wheel} /tmp/",
            f"RUN {VENV_DIR}/bin/pip install --no-cache-dir --no-index --no-deps /tmp/{self._wheel}",
            *(model if self.holds_bundle else []),
            label_instruction({f"{LABEL_PREFIX}.{key}": value for key, value in labels.items()}),
            "# Runs without root; the user cannot change the installed files.",
            "USER 1000:1000",
            f"EXPOSE {PORT}",
            f"ENTRYPOINT {exec_form(['headway', 'serve'])}",
            *([f"CMD {exec_form([BUNDLE])}"] if self.holds_bundle else []),
        ]


def serving_image(
    record: Record, *, bundled: bool = True, gpu: bool = False, repository: str | None = None, base: str | None = None
) -> ServingImage:
    """Return the image that serves this bundle with this version of Headway and Python. Needs no container daemon.

    Raises BadBundle for a recipe that this Headway does not have, since its server could not answer.
    """
    from headway._version import __version__
    from headway.packaging.code import build_wheel

    wheel, wheel_sha256 = build_wheel()
    content = json.dumps(record.as_json(), sort_keys=True) if bundled else ""
    return ServingImage(
        job=service_name(record.name) if bundled else "server",
        headway=__version__,
        base=base or f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim",
        platform=PLATFORM,
        setup=(),
        requirements=None,
        extras=("serve",) if bundled else ("gcp", "serve"),
        wheel=wheel,
        wheel_sha256=wheel_sha256,
        code_sha256=hashlib.sha256(content.encode()).hexdigest(),
        repository=repository,
        recipe=require_recipe(record.recipe, where=record.name).name if bundled else "any",
        holds_bundle=bundled,
        gpu=gpu,
    )


def write(image: ServingImage, bundle: Bundle, folder: Path) -> None:
    """Write the build context of `docker build` into a folder."""
    from headway.bundle.format import RECORD, to_json
    from headway.packaging.code import wheel_path

    needed = folder / "requirements"
    needed.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(wheel_path(image.wheel), folder / image.wheel)
    index = [] if image.gpu else [f"--extra-index-url {CPU_INDEX}"]
    (needed / "headway.txt").write_text(
        "\n".join([*index, requirements.wheel_requirements(folder / image.wheel, image.extras)])
    )
    (folder / "Dockerfile").write_text(image.dockerfile())
    if not image.holds_bundle:
        return
    inside = folder / "bundle"
    inside.mkdir(exist_ok=True)
    for name in bundle.record.files:
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_bytes(bundle.read(name))  # its checksum is verified again here
    (inside / RECORD).write_bytes(to_json(_plain_names(bundle.record).as_json()))
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _plain_names(record: Record) -> Record:
    """Drop the store's names: in the image each file has its own name."""
    from dataclasses import replace

    return replace(record, files={name: replace(entry, at=None) for name, entry in record.files.items()}, replaces=())


@contextmanager
def context(image: ServingImage, bundle: Bundle) -> Iterator[Path]:
    """Write the build context into a temporary folder, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headway-server-") as folder:
        write(image, bundle, Path(folder))
        yield Path(folder)


def build(engine: Engine, command: str, image: ServingImage, bundle: Bundle) -> str:
    """Build the image unless it exists; return its name."""
    if not is_present(engine, command, image.name):
        with context(image, bundle) as folder:
            engine([*build_command(command, image)[:-1], str(folder)], within_s=None)
    return image.name


def push(engine: Engine, command: str, image: ServingImage, bundle: Bundle) -> str:
    """Build the image, push it to its repository, and return the digest to deploy."""
    name = build(engine, command, image, bundle)
    engine([command, "push", name], within_s=None)
    return digest_of(engine, command, image)
