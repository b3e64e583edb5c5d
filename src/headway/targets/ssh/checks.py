"""What would stop a job on machines reached by ssh, each with what to type. Nobody is asked, nothing spent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from headway.errors import Problem
from headway.image import requirements
from headway.secrets import parse
from headway.spec.plain import dump
from headway.targets.here import about_key_files
from headway.targets.ssh import bringing, openssh, shell
from headway.targets.ssh.layout import is_here, is_mirrored, to_bring
from headway.targets.ssh.options import Options

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
        yield openssh.not_installed().problem


def notes(job: Job, ranks: int, options: Options) -> Iterator[str]:
    unused = [name for name in ("machine", "disk", "spot") if getattr(job.resources, name)]
    if unused:
        yield f"of no use here: resources.{', resources.'.join(unused)} (`up` decides)"
    if (job.image.uri or job.image.base) and not options.engine:
        yield "of no use here: image (write engine: docker in the target's entry to run it in a container there)"
    yield from about_key_files(job)
    yield from _billing(job, options)
    if is_mirrored(options, job.outputs):
        yield f"outputs: {job.outputs} is mirrored from the host while this machine is up; a bucket needs nobody"
    for source in to_bring(dump(job), options):
        parcel = bringing.parcel(source)
        size = bringing.amount(parcel.bytes)
        yield f"data: {source} is sent to each host once: {len(parcel.files)} files, {size}; ssh itself costs nothing"


def _billing(job: Job, options: Options) -> Iterator[str]:
    """What stays billed if this machine dies, and until when."""
    where = "the rented machine" if options.up else ", ".join(options.hosts) or options.host or "the machine"
    if options.up and not options.self_down:
        yield (
            f"no `self_down`: if this machine dies, {where} stays billed until `headway down` is typed elsewhere; "
            "with one, the machine ends itself"
        )
    if options.up and not options.list:
        yield "no `list`: the receipt rests on the word of `down` alone; nobody looks again"
    hides = shell.hides_failures(options.list or "")
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
            openssh.parse(text)
        except openssh.Refusal as error:
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
