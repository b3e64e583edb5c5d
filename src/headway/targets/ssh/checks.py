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
from headway.packaging import requirements
from headway.rundir.status import key_file_notes
from headway.spec.loading import dump
from headway.storage.secrets import parse
from headway.targets.ssh import connection, provider, sync
from headway.targets.ssh.connection import Host
from headway.targets.ssh.lifecycle import named
from headway.targets.ssh.options import Options, is_here, is_mirrored, to_bring
from headway.targets.ssh.sync import amount, parcel

if TYPE_CHECKING:
    from headway.spec import Job


_OURS = ("-o", "-F", "-i", "-l", "-p", "-t", "-T", "-N", "-f", "-M", "-S", "-W")


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _machines(job, options)
    yield from _rented(options)
    yield from _words(options)
    yield from _outputs(job, options)
    yield from _unmountable(job)
    yield from _secrets(job)
    if job.requirements and not options.python:
        yield from requirements.problems(Path(job.root), job.requirements)
    if which("ssh") is None:
        yield connection.not_installed().problem


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    unused = [name for name in ("machine", "disk", "spot") if getattr(job.resources, name)]
    if unused:
        yield f"of no use here: resources.{', resources.'.join(unused)} (`up` decides)"
    if (job.image.uri or job.image.base) and not options.engine:
        yield "of no use here: image (write engine: docker in the target's entry to run it in a container there)"
    yield from key_file_notes(job)
    yield from _billing(job, options)
    if is_mirrored(options, job.outputs):
        yield f"outputs: {job.outputs} is mirrored from the host while this machine is up; a bucket needs nobody"
    for source in to_bring(dump(job), options):
        parcel = sync.parcel(source)
        size = sync.amount(parcel.bytes)
        yield f"data: {source} is sent to each host once: {len(parcel.files)} files, {size}; ssh itself costs nothing"


def _billing(job: Job, options: Options) -> Iterator[str]:
    """List what stays billed if this machine dies, and until when."""
    where = "the rented machine" if options.up else ", ".join(options.hosts) or options.host or "the machine"
    if options.up and not options.self_down:
        yield (
            f"no `self_down`: if this machine dies, {where} stays billed until `headway down` is typed elsewhere; "
            "with one, the machine ends itself"
        )
    if options.up and not options.list:
        yield "no `list`: the receipt rests on the word of `down` alone; nobody looks again"
    hides = provider.hides_failures(options.list or "")
    if options.up and hides:
        yield f"list: {hides}: an empty answer is not believed; awk -v run={{run}} '$2 == run' ends with 0 by itself"
    if options.self_down and job.budget.hours is None:
        yield "no budget: `self_down` runs when the run ends, and not before; budget.hours sets a limit"


def _machines(job: Job, options: Options) -> Iterator[Problem]:
    named = list(options.hosts) or ([options.host] if options.host else [])
    if bool(named) == bool(options.up) or (options.host and options.hosts):
        what = "says both which machine to use and how to rent one" if named and options.up else "names no machine"
        what = "has both `host` and `hosts`" if options.host and options.hosts else what
        yield Problem(what=f"this ssh target {what}", where="targets", fix="host: user@name, or up: and down: commands")
        return
    for text in named:
        try:
            connection.parse(text)
        except connection.RemoteError as error:
            yield error.problem
    if named and len(named) < job.resources.nodes:
        what = f"{job.resources.nodes} nodes were asked for, and the target names {len(named)} hosts"
        yield Problem(what=what, where="resources.nodes", fix=f"hosts: [{', '.join(named)}, …]")


def _rented(options: Options) -> Iterator[Problem]:
    if options.up and not options.down:
        yield Problem(what="`up` rents a machine, and no `down` gives it back", where="targets", fix="down: …{id}…")
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
            what = f"`{name}` has {{{sorted(unknown)[0]}}}, which nobody fills in"
            yield Problem(what=what, where="targets", fix="only {run} and {id} are filled in")


def _words(options: Options) -> Iterator[Problem]:
    for word in options.args:
        if word[:2] in _OURS and word.startswith("-"):
            what = f"{word} is not for `args`: Headway sets it"
            yield Problem(what=what, where="targets", fix="write it into ~/.ssh/config, or a file named by `config`")
    for name in ("config", "identity"):
        path = getattr(options, name)
        if path and not Path(path).expanduser().is_file():
            yield Problem(what=f"there is no {path}", where="targets", fix=f"mend `{name}`")
    if options.share and not Path(options.share).is_dir():
        yield Problem(what=f"there is no {options.share} here, and `share` means the same folder everywhere",
                      where="targets", fix=f"mount it at {options.share}, or take `share` out")  # fmt: skip


def _outputs(job: Job, options: Options) -> Iterator[Problem]:
    if job.resources.nodes > 1 and is_mirrored(options, job.outputs):
        what = f"{job.resources.nodes} nodes must all see the run folder, and {job.outputs} is on this machine alone"
        yield Problem(what=what, where="outputs", fix="outputs: gs://, s3://, az://, or a folder under `share`")
    if job.export.to and is_here(options, job.export.to):
        what = f"{job.export.to} is on this machine alone, and the model is exported where it trains"
        fix = "take export.to out: the bundle is in the run folder; `headway export` copies it"
        yield Problem(what=what, where="export.to", fix=fix)


def _unmountable(job: Job) -> Iterator[Problem]:
    for mount in job.mounts:
        if mount.path != mount.at:
            what = f"nothing is mounted on a machine reached by ssh: {mount.nfs or mount.pvc or mount.path}"
            yield Problem(what=what, where="mounts", fix="mount it there in `setup`, and use the path as it is there")


def _secrets(job: Job) -> Iterator[Problem]:
    for name, secret in job.secrets.items():
        if parse(secret.ref).kind == "k8s":
            what = f"{secret.ref} lies in a Kubernetes cluster, and this machine is outside of it"
            yield Problem(what=what, where=f"secrets.{name}", fix=f"secrets: {{{name}: env:{name}}}")


# Checks of `headway doctor --on`: the machine is reachable, has enough disk space, and its driver fits torch.


ENVIRONMENT_BYTES = 8e9  # torch with CUDA, unpacked, and its dependencies
TIGHT_BYTES = 10e9  # leaves room for checkpoints
# Minimum driver version per CUDA major version.
OLDEST = {"11": (450, 80, 2), "12": (525, 60, 13), "13": (580, 65, 6)}
NOFILE_BYTES = 1e9


def findings(options: Options, job: Job) -> Iterator[Finding]:
    """Check one machine after the other. For a rented machine, which does not exist yet, check only its commands."""
    if options.up:
        yield Finding("note", "the machine is rented at launch: nobody can be asked before")
        if not options.self_down:
            yield Finding("note", "no `self_down`: if this machine dies, the rented one stays billed", "self_down: …")
        return
    with ExitStack() as stack:
        for machine in named(options):
            host = stack.enter_context(Host(machine, options))
            try:
                yield from _of(host, options, job)
            except HeadwayError as error:
                yield Finding("bad", error.problem.what, error.problem.fix)


def _of(host: Host, options: Options, job: Job) -> Iterator[Finding]:
    facts = host.facts
    python = ".".join(map(str, facts["python"]))
    yield Finding("ok", f"{host} answers as {facts['host']}: {facts['cpus']} CPUs, {amount(facts['memory'])} memory")
    yield from _space(host, facts, options, job)
    yield from _python(host, facts, options, python)
    built = host.ask("torch", python=options.python) if options.python else {}
    yield from driver(str(host), str(facts["driver"]), built, wanted=job.resources.accelerator is not None)


def _space(host: Host, facts: Mapping[str, Any], options: Options, job: Job) -> Iterator[Finding]:
    from headway.spec.loading import dump

    data = sum(parcel(source).bytes for source in to_bring(dump(job), options))
    needed = data + (0 if options.python else ENVIRONMENT_BYTES)
    free, where = float(facts["free"]), f"{facts['dir']} on {host}"
    if free < needed + NOFILE_BYTES:
        what = f"{amount(free)} free in {where}, and about {amount(needed)} are needed before the first step"
        yield Finding("bad", what, "another `dir` on a larger disk; `bootstrap` and `scratch` mount one")
    else:
        yield Finding("ok" if free > needed + TIGHT_BYTES else "note", f"{amount(free)} free in {where}")


def _python(host: Host, facts: Mapping[str, Any], options: Options, python: str) -> Iterator[Finding]:
    if not facts["has"]["bash"]:
        yield Finding("bad", f"{host} has no bash", "sudo apt-get install bash")
    if options.engine:
        there = facts["has"][options.engine]
        mark, fix = ("ok", "") if there else ("bad", "bootstrap: true, or: sudo apt-get install docker.io")
        yield Finding(mark, f"{host}: {options.engine} is {'' if there else 'not '}there", fix)
    elif options.python is None and not facts["has"]["uv"] and tuple(facts["python"]) < (3, 10):
        fix = f"ssh {host} 'curl -LsSf https://astral.sh/uv/install.sh | sh', which brings a newer one"
        yield Finding("bad", f"{host} has Python {python}, and 3.10 is the oldest that trains", fix)
    else:
        yield Finding("ok", f"{host}: Python {python}" + (", uv" if facts["has"]["uv"] else ""))


def driver(host: str, version: str, built: Mapping[str, Any], *, wanted: bool) -> Iterator[Finding]:
    """Compare the driver with the CUDA version that torch was built for."""
    if not version:
        if wanted:
            fix = "bootstrap: true installs it; or sudo ubuntu-drivers install --gpgpu, and a restart"
            yield Finding("bad", f"{host} has no NVIDIA driver, and the job asks for an accelerator", fix)
        else:
            yield Finding("note", f"{host} has no NVIDIA driver: it trains on the CPU")
        return
    cuda = str(built.get("cuda") or "")
    if not built.get("torch"):
        yield Finding("note", f"{host}: NVIDIA driver {version}; torch is not installed yet: it must be built for "
                              f"CUDA {newest(version)} or older")  # fmt: skip
    elif not cuda:
        fix = "pip install torch, without the CPU index"
        yield Finding("bad" if wanted else "note", f"{host}: torch {built['torch']} is built for the CPU alone", fix)
    elif _number(version) < OLDEST.get(cuda.partition(".")[0], (0,)):
        oldest = ".".join(map(str, OLDEST[cuda.partition(".")[0]]))
        what = (
            f"{host}: driver {version} is too old for torch {built['torch']}, built for CUDA {cuda}: {oldest} at least"
        )
        fix = f"a newer driver; or a torch for CUDA {newest(version)}: --index-url https://download.pytorch.org/whl/…"
        yield Finding("bad", what, fix)
    else:
        yield Finding("ok", f"{host}: driver {version} fits torch {built['torch']}, built for CUDA {cuda}")


def newest(version: str) -> str:
    """Return the newest CUDA major version that a driver supports."""
    return next((major for major in sorted(OLDEST, reverse=True) if _number(version) >= OLDEST[major]), "10")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
