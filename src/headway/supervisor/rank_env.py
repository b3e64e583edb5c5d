"""What a rank runs, where, and with which environment. Secrets become values here and nowhere else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from headway.core import processes
from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.supervisor.processes import Command
from headway.supervisor.topology import NodeTopology, cpus_here, rank_env

# Values that a target has brought here: never an argument, never in a plan.
#
# As files in memory, one a variable, in the folder that HEADWAY_SECRETS_DIR names, which is emptied once it has been
# read; or, with HEADWAY_SECRETS_STDIN, as one JSON object on the supervisor's standard input.


FOLDER, STDIN, NAMES = "HEADWAY_SECRETS_DIR", "HEADWAY_SECRETS_STDIN", "HEADWAY_BROUGHT"


def take_over(env: MutableMapping[str, str], told: TextIO | None = None) -> None:
    """Put what was brought into the environment, remember under which names, and remove the files."""
    if env.pop(STDIN, ""):
        _remember(env, _heard(told or sys.stdin))
    folder = env.get(FOLDER)
    if not folder:
        return
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        values = {path.name: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"what was brought in {FOLDER} cannot be read: {error}", where=folder) from None
    _remember(env, values)
    for path in files:
        try:
            path.unlink()
        except OSError:
            pass  # a cluster mounts them read-only, and takes them away itself


def _remember(env: MutableMapping[str, str], values: Mapping[str, str]) -> None:
    env.update(values)
    env[NAMES] = ",".join(filter(None, (env.get(NAMES, ""), *values)))


def _heard(told: TextIO) -> dict[str, str]:
    try:
        values = json.load(told)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        # Without a word of what it was: it may be half a secret.
        raise BadInput("what was brought over standard input is not an object of texts", where=STDIN)
    return values


def injected_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """What was brought, by name."""
    return {name: env[name] for name in env.get(NAMES, "").split(",") if name in env}


# The folders a supervisor uses on its machine. What it makes for itself is removed at its end, whatever that was.


_PREFIX = "headway-worker-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workdirs:
    """Folders of this node."""

    work: Path  # private to this supervisor
    spool: Path
    files: Path  # $HEADWAY_RUN_DIR
    resume: Path  # $HEADWAY_RESUME_DIR
    code: Path


def make_places(env: Mapping[str, str]) -> Workdirs:
    """Where the target chose a place for the spool, everything big lies beside it; else in a temporary folder."""
    parent = Path(env.get("HEADWAY_WORK_DIR") or tempfile.gettempdir())
    _remove_stale_workdirs(parent)
    work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_here()}-{_name(os.getpid())}-", dir=parent))
    spool = Path(env.get("HEADWAY_SPOOL") or work / "spool").absolute()
    beside = spool.parent
    spool.mkdir(parents=True, exist_ok=True)
    return Workdirs(
        work=work,
        spool=spool,
        files=Path(env.get("HEADWAY_RUN_DIR") or beside / "files").absolute(),
        resume=beside / "resume",
        code=Path(env.get("HEADWAY_CODE_DIR") or Path.cwd()).absolute(),
    )


def remove_places(places: Workdirs, *, files: bool) -> None:
    """Private folders go; what the script wrote goes only once it is safe in the run folder."""
    if files:
        for folder in (places.files, places.resume):
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(places.work, ignore_errors=True)


def _remove_stale_workdirs(parent: Path) -> None:
    """Whoever killed a supervisor with everything around it has left its folder, and secrets may lie in it."""
    for folder in parent.glob(f"{_PREFIX}{_here()}-*"):
        pid, _, since = folder.name.removeprefix(f"{_PREFIX}{_here()}-").rpartition("-")[0].partition("-")
        if pid.isdigit() and not processes.alive(int(pid), since):
            shutil.rmtree(folder, ignore_errors=True)


def _here() -> str:
    """Pids mean something only within one boot and one pid namespace."""
    return hashlib.sha256(processes.here().encode()).hexdigest()[:8]


def _name(pid: int) -> str:
    return f"{pid}-{processes.started(pid)}"


# Of whatever started the supervisor, these would mislead a rank: torch would look for torchrun's store, for one.
_NOT_FOR_RANKS = ("GROUP_", "PET_", "ROLE_", "TORCHELASTIC_")
_NOT_OURS_ANY_MORE = ("HEADWAY_HOSTS", "HEADWAY_NODE", "TF_CONFIG")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """Values, in this process only. `variables` is what ranks see: the value, or the path of a file with it."""

    variables: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()


def resolve_secrets(plan: Plan, env: Mapping[str, str], folder: Path, resolve: Callable[[str], str]) -> Secrets:
    """Every secret of the job, looked up once. One that cannot be had is an error before anything is started."""
    brought = injected_secrets(env)
    variables, values = {}, list(brought.values())
    for name, secret in plan.job.get("secrets", {}).items():
        reference = str(secret["ref"])
        by_cluster = reference.startswith("k8s://") and name in env  # which alone may read it
        value = env[name] if name in brought or by_cluster else resolve(reference)
        values.append(value)
        if secret.get("as", secret.get("as_")) == "file":
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(value)
            value = str(path)
        variables[name] = value
    return Secrets(variables=variables, values=tuple(values))


def threads(plan: Plan, world: NodeTopology) -> str:
    """OMP_NUM_THREADS of every rank: the job's word, the plan's, or an equal share of this node's CPUs."""
    chosen = plan.job.get("env", {}).get("OMP_NUM_THREADS") or plan.environment.get("threads")
    return str(chosen or max(1, cpus_here() // world.processes))


def argv(plan: Plan, code: Path) -> tuple[str, ...]:
    """The recipe, the user's Python script, or the user's program."""
    if plan.job.get("recipe"):
        return (sys.executable, "-m", "headway.recipes")
    script, args = str(plan.job.get("script") or ""), tuple(map(str, plan.job.get("args", ())))
    path = code / script
    if not script or not path.is_file():
        raise BadInput(f"there is no script {script!r} in the code that was sent", where=str(code), fix="headway plan")
    if path.suffix == ".py":
        return (sys.executable, script, *args)
    if not os.access(path, os.X_OK):
        raise BadInput(f"{script} is neither a .py file nor executable", where=str(code), fix=f"chmod +x {script}")
    return (str(path), *args)


def command(
    plan: Plan,
    world: NodeTopology,
    local_rank: int,
    *,
    base: Mapping[str, str],
    run: Mapping[str, str],
    places: Workdirs,
    secrets: Secrets,
) -> Command:
    """One rank. `base` is the supervisor's own environment, `run` what this run and attempt add to it."""
    inherited = {
        name: value
        for name, value in base.items()
        if not name.startswith(_NOT_FOR_RANKS) and name not in _NOT_OURS_ANY_MORE
    }
    own = rank_env(world, local_rank)
    asked: dict[str, Any] = {name: str(value) for name, value in plan.job.get("env", {}).items()}
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name in base or name in asked:
            own.pop(name, None)  # somebody knows this network better
    if "PYTHONPATH" in base and "PYTHONPATH" in asked:  # the planned Headway may lie there, and is needed as well
        asked["PYTHONPATH"] = _searched(base["PYTHONPATH"], asked["PYTHONPATH"])
    env = {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        # Threads that wait for each other spin for a moment, not for long: where a neighbour takes one of the cores,
        # long spinning makes torch several times slower (measured: 3.4 against 18 steps/s with two threads).
        "GOMP_SPINCOUNT": "1000",
        **asked,
        **secrets.variables,
        **own,
        **run,
        "OMP_NUM_THREADS": threads(plan, world),
        "HEADWAY_CODE_DIR": str(places.code),
        "HEADWAY_RUN_DIR": str(places.files),
        "HEADWAY_RESUME_DIR": str(places.resume),
    }
    return Command(rank=world.ranks[local_rank], argv=argv(plan, places.code), env=env, cwd=places.code)


def _searched(*paths: str) -> str:
    """Folders of several search paths, each once."""
    return os.pathsep.join(dict.fromkeys(folder for path in paths for folder in path.split(os.pathsep) if folder))
