"""Check a job for the ssh target, with a fix per problem (offline), and check its machines for `doctor` (online)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError, Problem
from headway.core.types import Finding
from headway.packaging import dependencies, own_dockerfile
from headway.rundir.status import key_file_notes
from headway.spec.loading import dump
from headway.targets.checks import (
    cluster_secret_problems,
    dependency_notes,
    interpreter_problems,
    mount_problems,
    read_only_notes,
    unused_image_notes,
    unused_resource_notes,
)
from headway.targets.ssh import connection, provider, sync
from headway.targets.ssh.connection import Host
from headway.targets.ssh.lifecycle import configured_machines
from headway.targets.ssh.options import Options, is_local, is_mirrored, sources_to_upload
from headway.targets.ssh.sync import format_bytes, scan_source

if TYPE_CHECKING:
    from headway.spec import Job


_RESERVED_OPTIONS = ("-o", "-F", "-i", "-l", "-p", "-t", "-T", "-N", "-f", "-M", "-S", "-W")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _host_problems(job, options)
    yield from _provider_problems(options)
    yield from _ssh_option_problems(options)
    yield from _output_problems(job, options)
    mount = "nothing is mounted on a machine reached by ssh: {source}"
    yield from mount_problems(job, mount, fix="mount it there in `setup`, and use the path as it is there")
    yield from cluster_secret_problems(job, "this machine is")
    yield from interpreter_problems(job)
    if options.engine:
        yield from own_dockerfile.problems(job)
    if not options.engine or not (job.image.uri or job.image.dockerfile):
        yield from dependencies.problems(job)
    if which("ssh") is None:
        yield connection.not_installed().problem


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    yield from unused_resource_notes(job, "`up` decides", more=() if options.engine else ("cpus", "memory"))
    foreign = (job.image.uri or job.image.dockerfile) if options.engine else None
    if not options.engine:
        yield from read_only_notes(job)
        yield from unused_image_notes(job, "engine: docker in the target's entry runs it in a container there")
    yield from dependency_notes(job, f"{foreign} is used as it is" if foreign else "")
    yield from key_file_notes(job)
    yield from _billing_problems(job, options)
    if is_mirrored(options, job.outputs):
        yield f"outputs: {job.outputs} is mirrored from the host while this machine is up; a bucket does not need that"
    for source in sources_to_upload(dump(job), options):
        upload = sync.scan_source(source)
        size = sync.format_bytes(upload.bytes)
        yield f"data: {source} is sent to each host once: {len(upload.files)} files, {size}"


def _billing_problems(job: Job, options: Options) -> Iterator[str]:
    """List what stays billed if this machine dies, and until when."""
    where = "the rented machine" if options.up else ", ".join(options.hosts) or options.host or "the machine"
    if options.up and not options.self_down:
        yield (
            f"no `self_down`: if this machine dies, {where} stays billed until `headway down` is run elsewhere; "
            "with one, the machine shuts itself down"
        )
    if options.up and not options.list:
        yield "no `list`: the receipt relies on the exit code of `down` alone"
    hides = provider.hides_failures(options.list or "")
    if options.up and hides:
        yield f"list: {hides}: empty output is not trusted; awk -v run={{run}} '$2 == run' exits with 0 on no match"
    if options.self_down and job.budget.hours is None:
        yield "no budget: `self_down` runs only when the run ends; budget.hours sets a limit"


def _host_problems(job: Job, options: Options) -> Iterator[Problem]:
    configured = list(options.hosts) or ([options.host] if options.host else [])
    if bool(configured) == bool(options.up) or (options.host and options.hosts):
        what = "has both a host and `up`, which rents one" if configured and options.up else "names no machine"
        what = "has both `host` and `hosts`" if options.host and options.hosts else what
        yield Problem(what=f"this ssh target {what}", where="targets", fix="host: user@name, or up: and down: commands")
        return
    for text in configured:
        try:
            connection.parse(text)
        except connection.RemoteError as error:
            yield error.problem
    if configured and len(configured) < job.resources.nodes:
        what = f"{job.resources.nodes} nodes were asked for, and the target names {len(configured)} hosts"
        yield Problem(what=what, where="resources.nodes", fix=f"hosts: [{', '.join(configured)}, …]")


def _provider_problems(options: Options) -> Iterator[Problem]:
    if options.up and not options.down:
        yield Problem(
            what="`up` rents a machine, but there is no `down` to release it", where="targets", fix="down: …{id}…"
        )
    for name in ("down", "list"):
        command = getattr(options, name)
        if command and not options.up:
            yield Problem(what=f"`{name}` without `up`", where="targets", fix=f"take `{name}` out, or add `up`")
        if command and "{run}" not in command and "{id}" not in command:
            what = f"`{name}` does not say which machine: it has neither {{run}} nor {{id}}"
            yield Problem(what=what, where="targets", fix=f"{name}: {command} {{id}}")
    if options.up and "{run}" not in options.up:
        what = "`up` does not name or label the machine after {run}: after a crash nobody could find it"
        yield Problem(what=what, where="targets", fix=f"up: {options.up} … {{run}}")
    for name in ("up", "down", "list", "self_down"):
        command = getattr(options, name) or ""
        unknown = set(re.findall(r"(?<!\$)\{(\w+)\}", command)) - ({"run", "id"} if name != "up" else {"run"})
        if unknown:
            what = f"`{name}` has {{{sorted(unknown)[0]}}}, which is not a known placeholder"
            yield Problem(what=what, where="targets", fix="only {run} and {id} are filled in")


def _ssh_option_problems(options: Options) -> Iterator[Problem]:
    for argument in options.args:
        if argument[:2] in _RESERVED_OPTIONS and argument.startswith("-"):
            what = f"{argument} is not for `args`: Headway sets it"
            yield Problem(what=what, where="targets", fix="write it into ~/.ssh/config, or a file named by `config`")
    for name in ("config", "identity"):
        path = getattr(options, name)
        if path and not Path(path).expanduser().is_file():
            yield Problem(what=f"there is no {path}", where="targets", fix=f"correct `{name}`")
    if options.share and not Path(options.share).is_dir():
        yield Problem(what=f"there is no {options.share} here, and `share` means the same folder everywhere",
                      where="targets", fix=f"mount it at {options.share}, or take `share` out")  # fmt: skip


def _output_problems(job: Job, options: Options) -> Iterator[Problem]:
    if job.resources.nodes > 1 and is_mirrored(options, job.outputs):
        what = f"{job.resources.nodes} nodes must all see the run folder, and {job.outputs} is on this machine alone"
        yield Problem(what=what, where="outputs", fix="outputs: gs://, s3://, az://, or a folder under `share`")
    if job.export.to and is_local(options, job.export.to):
        what = f"{job.export.to} is on this machine alone, and the model is exported where it trains"
        fix = "take export.to out: the bundle is in the run folder; `headway export` copies it"
        yield Problem(what=what, where="export.to", fix=fix)


# Checks of `headway doctor --on`: the machine is reachable, has enough disk space, and its driver fits torch.


ENVIRONMENT_BYTES = 8e9  # torch with CUDA, unpacked, and its dependencies
LOW_SPACE_BYTES = 10e9  # leaves room for checkpoints
# Minimum driver version per CUDA major version.
MIN_DRIVER = {"11": (450, 80, 2), "12": (525, 60, 13), "13": (580, 65, 6)}
SPARE_BYTES = 1e9


def findings(options: Options, job: Job) -> Iterator[Finding]:
    """Check one machine after the other. For a rented machine, which does not exist yet, check only its commands."""
    if options.up:
        yield Finding("note", "the machine is rented at launch, so it cannot be checked now")
        if not options.self_down:
            yield Finding("note", "no `self_down`: if this machine dies, the rented one stays billed", "self_down: …")
        return
    with ExitStack() as stack:
        for machine in configured_machines(options):
            host = stack.enter_context(Host(machine, options))
            try:
                yield from _host_findings(host, options, job)
            except HeadwayError as error:
                yield Finding("bad", error.problem.what, error.problem.fix)


def _host_findings(host: Host, options: Options, job: Job) -> Iterator[Finding]:
    facts = host.facts
    python = ".".join(map(str, facts["python"]))
    yield Finding(
        "ok", f"{host} answers as {facts['host']}: {facts['cpus']} CPUs, {format_bytes(facts['memory'])} memory"
    )
    yield from _space_finding(host, facts, options, job)
    yield from _python_finding(host, facts, options, python)
    cuda = host.ask("torch", python=options.python) if options.python else {}
    yield from driver_finding(str(host), str(facts["driver"]), cuda, wanted=job.resources.accelerator is not None)


def _space_finding(host: Host, facts: Mapping[str, Any], options: Options, job: Job) -> Iterator[Finding]:
    from headway.spec.loading import dump

    data = sum(scan_source(source).bytes for source in sources_to_upload(dump(job), options))
    needed = data + (0 if options.python else ENVIRONMENT_BYTES)
    free, where = float(facts["free"]), f"{facts['dir']} on {host}"
    if free < needed + SPARE_BYTES:
        what = (
            f"{format_bytes(free)} free in {where}, and about {format_bytes(needed)} are needed before the first step"
        )
        yield Finding("bad", what, "another `dir` on a larger disk; `bootstrap` and `scratch` mount one")
    else:
        yield Finding("ok" if free > needed + LOW_SPACE_BYTES else "note", f"{format_bytes(free)} free in {where}")


def _python_finding(host: Host, facts: Mapping[str, Any], options: Options, python: str) -> Iterator[Finding]:
    if not facts["has"]["bash"]:
        yield Finding("bad", f"{host} has no bash", "sudo apt-get install bash")
    if options.engine:
        there = facts["has"][options.engine]
        mark, fix = ("ok", "") if there else ("bad", "bootstrap: true, or: sudo apt-get install docker.io")
        yield Finding(mark, f"{host}: {options.engine} is {'' if there else 'not '}there", fix)
    elif options.python is None and not facts["has"]["uv"] and tuple(facts["python"]) < (3, 10):
        fix = f"ssh {host} 'curl -LsSf https://astral.sh/uv/install.sh | sh', which installs a newer one"
        yield Finding("bad", f"{host} has Python {python}, and 3.10 is the oldest that trains", fix)
    else:
        yield Finding("ok", f"{host}: Python {python}" + (", uv" if facts["has"]["uv"] else ""))


def driver_finding(host: str, version: str, build: Mapping[str, Any], *, wanted: bool) -> Iterator[Finding]:
    """Compare the driver with the CUDA version that torch was built for."""
    if not version:
        if wanted:
            fix = "bootstrap: true installs it; or sudo ubuntu-drivers install --gpgpu, and a restart"
            yield Finding("bad", f"{host} has no NVIDIA driver, and the job asks for an accelerator", fix)
        else:
            yield Finding("note", f"{host} has no NVIDIA driver: it trains on the CPU")
        return
    cuda = str(build.get("cuda") or "")
    if not build.get("torch"):
        yield Finding("note", f"{host}: NVIDIA driver {version}; torch is not installed yet: it must be built for "
                              f"CUDA {newest_cuda(version)} or older")  # fmt: skip
    elif not cuda:
        fix = "pip install torch, without the CPU index"
        yield Finding("bad" if wanted else "note", f"{host}: torch {build['torch']} is built for the CPU alone", fix)
    elif _number(version) < MIN_DRIVER.get(cuda.partition(".")[0], (0,)):
        oldest = ".".join(map(str, MIN_DRIVER[cuda.partition(".")[0]]))
        what = (
            f"{host}: driver {version} is too old for torch {build['torch']}, built for CUDA {cuda}: {oldest} at least"
        )
        fix = f"a newer driver; or a torch for CUDA {newest_cuda(version)}: --index-url https://download.pytorch.org/whl/…"
        yield Finding("bad", what, fix)
    else:
        yield Finding("ok", f"{host}: driver {version} fits torch {build['torch']}, built for CUDA {cuda}")


def newest_cuda(version: str) -> str:
    """Return the newest CUDA major version that a driver supports."""
    return next((major for major in sorted(MIN_DRIVER, reverse=True) if _number(version) >= MIN_DRIVER[major]), "10")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
