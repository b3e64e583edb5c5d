"""Options of a Vertex AI target in the job file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from headway.spec.model import Accelerator, ReferenceString, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """An alternative to try. Keys that are left out keep their values from the entry and from `resources`."""

    region: str | None = None  # us-central1
    machine: str | None = None  # g2-standard-8
    accelerator: Accelerator | None = None  # L4:1
    spot: bool | None = None  # false: use on-demand machines if no spot machines are available


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    project: ReferenceString | None = None  # the project that is billed: my-project
    region: str = "us-central1"  # region of the machines; the bucket should be in the same one
    mode: Literal["container", "package"] = "container"  # your image, or a source package in one of Google's images
    fallback: tuple[Fallback, ...] = ()  # alternatives to try in order if the first has no quota or capacity
    switch_after: Seconds | None = None  # how long to queue in one region before the next of `fallback` is tried
    strategy: Literal["standard", "flex-start"] = "standard"  # flex-start: wait for GPUs, at a lower price
    timeout: Seconds = 604_800.0  # time limit of each submission, if the budget has no hours
    grace: Seconds = 30.0  # from SIGTERM to SIGKILL, for the last checkpoint
    service_account: ReferenceString | None = None  # account that the job runs as; by default Vertex AI's own agent
    network: ReferenceString | None = None  # projects/NUMBER/global/networks/NAME: a peered network
    tensorboard: ReferenceString | None = None  # projects/P/locations/R/tensorboards/ID
    web_access: bool = False  # allow a shell on the machines from the console
    kms_key: ReferenceString | None = None  # key that encrypts Vertex AI's data: projects/P/locations/R/keyRings/K/…
    disk_type: Literal["pd-ssd", "pd-standard"] = "pd-ssd"  # type of the boot disk; its size is resources.disk
    price: Annotated[float, ">= 0"] | None = None  # USD per hour of a machine, if you do not pay Google's list price
    spot_price: Annotated[float, ">= 0"] | None = None  # the same for spot machines
    management_factor: Annotated[float, ">= 1"] = 1.15  # Vertex AI's fee on top of the machine's price, for estimates
    labels: Mapping[str, Annotated[str, "text"]] = field(default_factory=dict)  # more labels, for your bills
    python: str = "python3"  # the interpreter inside the image
