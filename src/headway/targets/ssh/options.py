"""What an ssh target's entry in the job file may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headway.spec.model import ReferenceString, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    host: ReferenceString | None = None  # user@name:port, or a Host of ~/.ssh/config
    hosts: tuple[str, ...] = ()  # several machines, in the order of nodes
    up: str | None = None  # a command that rents the machine and prints host=… [hostkey=…] id=… [user=…] [port=…]
    down: str | None = None  # gives it back; {run} and {id} are filled in, here and in the others
    list: str | None = None  # prints the run's machines, one a line, and ends with 0; nothing: they are gone
    self_down: str | None = None  # run on the machine itself when its run has ended and nobody has taken it down
    price: Annotated[float, ">= 0"] | None = None  # dollars an hour for one machine
    share: str | None = (
        None  # a folder that this machine and the hosts have under the same path: outputs and data there stay
    )
    dir: str = "~/.headway"  # where Headway keeps things on the host
    python: str | None = None  # the interpreter there that trains, with its packages; by default an environment is made
    engine: Literal["docker", "podman"] | None = None  # run it in a container there
    bootstrap: bool = False  # ready a bare Debian or Ubuntu: driver, Docker, NVIDIA's toolkit, scratch disk
    scratch: str | None = None  # a device for bootstrap to format, if it is empty, and mount: /dev/nvme1n1
    config: ReferenceString | None = None  # another file than ~/.ssh/config
    identity: ReferenceString | None = None  # a private key's file
    args: tuple[str, ...] = ()  # more words for ssh: -J, jump-host
    ready: Seconds = 600.0  # how long a rented machine may take until it answers
    gone: Seconds = 300.0  # how long a machine may stay in `list` after `down`, before it counts as left behind
    linger: Seconds = 3600.0  # how long self_down waits for the last outputs to be fetched, if they go to this machine
    connections: Annotated[int, ">= 1"] = 4  # at once, for data and checkpoints
    shm: Annotated[int, "size"] = 8_000_000_000  # shared memory of a container there
