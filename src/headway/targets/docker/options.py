"""What a docker target's entry in the job file may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headway.packaging.dockerfile import PLATFORM
from headway.spec.model import Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    command: str = "docker"  # docker, podman, or the path of either
    platform: str = PLATFORM  # of the image; linux/arm64 on such a machine
    python: str = "python3"  # the interpreter inside the image
    shm: Bytes = 8_000_000_000  # shared memory, through which data loaders hand over batches: at most this much
    network: str | None = None  # an existing network to join, or host; by default Docker's own
    user: Literal["me", "root"] = "me"  # who the files belong to; root where the daemon is rootless: it means you there
    price: Annotated[float, ">= 0"] | None = None  # USD an hour, where this machine is a rented one
    args: tuple[str, ...] = ()  # more words for `docker create`
