"""How a run's machine is reached: for each kind of target, the command whose streams are those of a Python there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway import intent
from headway.errors import BadInput, TargetError
from headway.storage import local_path

if TYPE_CHECKING:
    from headway.launcher import Launched


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where Jupyter is to run. `words` are complete but for what that Python shall do."""

    where: str  # in a message
    words: tuple[str, ...]
    url: str  # the run's folder, as it is called there
    python: str | None = None  # the interpreter that trains, where no live run tells
    quoted: bool = False  # what follows `words` is read by a shell
    here: bool = False  # its ports are ours
    install: Callable[[str], str] = "{} -m pip install jupyterlab".format  # what to type, given the interpreter

    def call(self, *more: str) -> list[str]:
        if not self.quoted:
            return [*self.words, *more]
        return [*self.words[:-1], f"{self.words[-1]} {shlex.join(more)}"]


def place(launched: Launched) -> Place:
    """BadInput for a target whose machines take no visitors."""
    known = intent.read(launched.folder)
    found = _PLACES.get(str(known["kind"]))
    if found is None:
        what = f"notebooks open on local, docker, ssh and kubernetes targets; {launched.run} is on {known['kind']}"
        raise BadInput(what, fix=f"headway pull {launched.run}, then `headway.open_run` in a notebook of your own")
    return found(launched)


def _local(launched: Launched) -> Place:
    target: Any = launched.target
    python = target.options.python or sys.executable
    return Place(where="this machine", words=(python,), url=launched.url, python=python, here=True)


def _ssh(launched: Launched) -> Place:
    from headway.targets.ssh import openssh
    from headway.targets.ssh.layout import layout
    from headway.targets.ssh.link import machines_of
    from headway.targets.ssh.rental import Records

    target: Any = launched.target
    options, handle = target.options, launched.handle
    machines = machines_of(options, handle, Records())
    if not machines:
        raise _gone(launched, "machine")
    there = layout(options, handle.url.rpartition("/")[0], handle.run, dir=str(handle.details.get("dir", options.dir)))
    python = options.python or "python3"
    engine = f"{options.engine} exec --interactive headway-{handle.run}-0 " if options.engine else ""
    call = f"exec {engine}{shlex.quote(python)}"
    return Place(
        where=str(machines[0]),
        words=tuple(openssh.words(machines[0], options, call)),
        url=there.folder,
        python=python,
        quoted=True,
        install=lambda found: f"ssh {machines[0]} {engine}{found} -m pip install jupyterlab",
    )


def _docker(launched: Launched) -> Place:
    from headway.targets.docker import seen

    target: Any = launched.target
    options = target.options
    live = [thing for thing in seen.containers(target.engine, options.command, launched.url) if thing.live]
    if not live:
        raise _gone(launched, "container")
    inside = (options.command, "exec", "--interactive", live[0].name, options.python)
    return Place(
        where=f"container {live[0].name}",
        words=inside,
        url=launched.url,
        python=options.python,
        install=_in_an_image,
    )


def _kubernetes(launched: Launched) -> Place:
    from shutil import which

    from headway.targets.kubernetes import seen

    target: Any = launched.target
    options = target.options
    if which("kubectl") is None:
        raise BadInput("kubectl is not installed on this machine", fix="https://kubernetes.io/docs/tasks/tools")
    live = [pod for pod in seen.workers(target._api(), options, launched.run, launched.url) if pod.running]
    if not live:
        raise _gone(launched, "pod")
    context = ("--context", options.context) if options.context else ()
    inside = ("exec", "--stdin", "--quiet", live[0].name, "--", options.python)
    return Place(
        where=f"pod {live[0].name}",
        words=("kubectl", *context, "--namespace", options.namespace, *inside),
        url=launched.url,
        python=options.python,
        install=_in_an_image,
    )


def _in_an_image(_: str) -> str:
    return "add jupyterlab to the job's requirements, or to its image, and run it again"


def _gone(launched: Launched, what: str) -> TargetError:
    fix = f"headway pull {launched.run}, then `headway.open_run` in a notebook of your own"
    return TargetError(f"no {what} of {launched.run} is running", fix=fix)


_PLACES: dict[str, Callable[[Launched], Place]] = {
    "docker": _docker,
    "kubernetes": _kubernetes,
    "local": _local,
    "ssh": _ssh,
}


def folder_there(found: Place) -> str:
    """The folder to open: the run's, where it is one; in a bucket it is none, and its code will do."""
    path = local_path(found.url)
    return "" if path is None else str(path)
