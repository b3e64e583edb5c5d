"""What a Vertex AI target's entry in the job file may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from headway.spec.model import Accelerator, ReferenceString, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """Another place to try. What is left out stays as it is in the entry and in `resources`."""

    region: str | None = None  # us-central1
    machine: str | None = None  # g2-standard-8
    accelerator: Accelerator | None = None  # L4:1
    spot: bool | None = None  # false: pay in full where spot machines are gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    project: ReferenceString | None = None  # whose account is billed: my-project
    region: str = "us-central1"  # where it runs; the bucket should be there too
    mode: Literal["container", "package"] = "container"  # your image, or a source package in one of Google's
    fallback: tuple[Fallback, ...] = ()  # places to try in turn where the first has no quota or no machine
    switch_after: Seconds | None = None  # so long in the queue of one place, then the next of `fallback` is tried
    strategy: Literal["standard", "flex-start"] = "standard"  # flex-start: wait for GPUs, at a lower price
    timeout: Seconds = 604_800.0  # at most this long for each submission, where the budget names no hours
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL, for the last checkpoint
    service_account: ReferenceString | None = None  # who the job is; by default Vertex AI's own agent
    network: ReferenceString | None = None  # projects/NUMBER/global/networks/NAME: a peered network
    tensorboard: ReferenceString | None = None  # projects/P/locations/R/tensorboards/ID
    web_access: bool = False  # a shell into the machines, from the console
    kms_key: ReferenceString | None = None  # encrypts what Vertex AI keeps: projects/P/locations/R/keyRings/K/…
    disk_type: Literal["pd-ssd", "pd-standard"] = "pd-ssd"  # of the boot disk; its size is resources.disk
    price: Annotated[float, ">= 0"] | None = None  # USD an hour of a machine, where you pay another than Google's list
    spot_price: Annotated[float, ">= 0"] | None = None  # the same for spot machines
    management_factor: Annotated[float, ">= 1"] = 1.15  # Vertex AI's fee on top of the machine's price, for estimates
    labels: Mapping[str, Annotated[str, "text"]] = field(default_factory=dict)  # more of them, for your bills
    python: str = "python3"  # the interpreter inside the image
