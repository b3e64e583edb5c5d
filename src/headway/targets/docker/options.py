"""Options of a docker target in the job file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headway.packaging.dockerfile import PLATFORM
from headway.spec.model import Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    command: str = "docker"  # docker, podman, or the path of either
    platform: str = PLATFORM  # platform of the image; linux/arm64 on an ARM machine
    python: str = "python3"  # the interpreter inside the image
    shm: Bytes = 8_000_000_000  # size of the shared memory, which data loaders use to pass batches
    network: str | None = None  # an existing network to join, or host; by default Docker's own
    user: Literal["me", "root"] = "me"  # owner of the files; with a rootless daemon use root, which is you there
    price: Annotated[float, ">= 0"] | None = None  # USD per hour, if this machine is rented
    args: tuple[str, ...] = ()  # more arguments for `docker create`
