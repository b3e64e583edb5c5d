"""Readying a bare Debian or Ubuntu before its first run: one script, sent and run there, safe to run again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.targets.ssh import openssh
from headway.targets.ssh.host import Host
from headway.targets.ssh.options import Options

if TYPE_CHECKING:
    from headway.planning.model import Plan

SCRIPT = Path(__file__).with_name("bootstrap.sh")
WITHIN_S = 3600.0  # a driver and its headers are gigabytes


def words(plan: Plan, options: Options) -> list[str]:
    """What the script is asked for, by what the job needs."""
    asked = ["--gpu"] if plan.job.get("resources", {}).get("accelerator") else []
    asked += ["--docker"] if options.engine == "docker" else []
    return [*asked, *(["--scratch", options.scratch] if options.scratch else [])]


def ready(host: Host, plan: Plan, options: Options, say: Callable[[str], None]) -> None:
    """Run it there. Needs no Python: it brings it."""
    command = shlex.join(["bash", "-s", "--", *words(plan, options)])
    printed = openssh.run(host.machine, options, command, told=SCRIPT.read_bytes(), within_s=WITHIN_S)
    for line in printed.splitlines():
        say(f"{host}: {line}")
