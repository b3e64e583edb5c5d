"""What `headway doctor --on` finds on machines reached by ssh: reachable, room enough, a driver that fits torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.targets.findings import Finding
from headway.targets.ssh.bringing import amount, parcel
from headway.targets.ssh.host import Host
from headway.targets.ssh.layout import to_bring
from headway.targets.ssh.link import named
from headway.targets.ssh.options import Options

if TYPE_CHECKING:
    from headway.spec import Job

ENVIRONMENT_BYTES = 8e9  # torch with CUDA, unpacked, and what comes with it
TIGHT_BYTES = 10e9  # checkpoints come besides
# The oldest driver that runs programs built for a CUDA of this major version.
OLDEST = {"11": (450, 80, 2), "12": (525, 60, 13), "13": (580, 65, 6)}
NOFILE_BYTES = 1e9


def findings(options: Options, job: Job) -> Iterator[Finding]:
    """One machine after the other. A rented one does not exist yet: its commands are all there is to look at."""
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
    from headway.spec.plain import dump

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
    """The driver held against the CUDA that torch was built for."""
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
    """The newest major CUDA version that a driver runs."""
    return next((major for major in sorted(OLDEST, reverse=True) if _number(version) >= OLDEST[major]), "10")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
