"""Build each rank's command, working folder and environment; create the supervisor's folders; resolve secrets.

Within the supervisor, only this module turns secret references into values.
"""

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

from headway.core import platform
from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.supervisor.processes import Command
from headway.supervisor.topology import NodeTopology, cpus_here, rank_env

# Injected secrets: values that a target passes in, never as arguments and never in a plan.
#
# Either as files in memory, one per variable, in the folder HEADWAY_SECRETS_DIR, which is emptied once it has been
# read; or, with HEADWAY_SECRETS_STDIN, as one JSON object on the supervisor's standard input.


FOLDER, STDIN, NAMES = "HEADWAY_SECRETS_DIR", "HEADWAY_SECRETS_STDIN", "HEADWAY_BROUGHT"


def take_over(env: MutableMapping[str, str], stdin: TextIO | None = None) -> None:
    """Put injected secrets into the environment, record their names in HEADWAY_BROUGHT, and remove the files."""
    if env.pop(STDIN, ""):
        _add_secrets(env, _read_secrets_from_stdin(stdin or sys.stdin))
    folder = env.get(FOLDER)
    if not folder:
        return
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        values = {path.name: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the secrets in {FOLDER} cannot be read: {error}", where=folder) from None
    _add_secrets(env, values)
    for path in files:
        try:
            path.unlink()
        except OSError:
            pass  # Kubernetes mounts them read-only and removes them itself


def _add_secrets(env: MutableMapping[str, str], values: Mapping[str, str]) -> None:
    env.update(values)
    env[NAMES] = ",".join(filter(None, (env.get(NAMES, ""), *values)))


def _read_secrets_from_stdin(stdin: TextIO) -> dict[str, str]:
    try:
        values = json.load(stdin)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        # Do not quote the input: it may contain part of a secret.
        raise BadInput("the secrets on standard input are not a JSON object of strings", where=STDIN)
    return values


def injected_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return the injected secrets by name."""
    return {name: env[name] for name in env.get(NAMES, "").split(",") if name in env}


# The supervisor's folders on its machine. It removes its private ones however it ends.


_PREFIX = "headway-worker-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workdirs:
    """The supervisor's folders on this node."""

    work: Path  # private to this supervisor
    spool: Path
    files: Path  # $HEADWAY_RUN_DIR
    resume: Path  # $HEADWAY_RESUME_DIR
    code: Path


def make_workdirs(env: Mapping[str, str]) -> Workdirs:
    """Create the folders. Large ones go beside HEADWAY_SPOOL if the target set it, else into a temporary folder."""
    parent = Path(env.get("HEADWAY_WORK_DIR") or tempfile.gettempdir())
    _remove_stale_workdirs(parent)
    work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_namespace_digest()}-{_process_label(os.getpid())}-", dir=parent))
    spool = Path(env.get("HEADWAY_SPOOL") or work / "spool").absolute()
    parent_dir = spool.parent
    spool.mkdir(parents=True, exist_ok=True)
    return Workdirs(
        work=work,
        spool=spool,
        files=Path(env.get("HEADWAY_RUN_DIR") or parent_dir / "files").absolute(),
        resume=parent_dir / "resume",
        code=Path(env.get("HEADWAY_CODE_DIR") or Path.cwd()).absolute(),
    )


def remove_workdirs(workdirs: Workdirs, *, files: bool) -> None:
    """Remove private folders; with `files`, also the script's files, which must be in the run folder by then."""
    if files:
        for folder in (workdirs.files, workdirs.resume):
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(workdirs.work, ignore_errors=True)


def _remove_stale_workdirs(parent: Path) -> None:
    """Remove the folders of supervisors that were killed along with their orphan reaper: they may contain secrets."""
    for folder in parent.glob(f"{_PREFIX}{_namespace_digest()}-*"):
        pid, _, since = folder.name.removeprefix(f"{_PREFIX}{_namespace_digest()}-").rpartition("-")[0].partition("-")
        if pid.isdigit() and not platform.is_alive(int(pid), since):
            shutil.rmtree(folder, ignore_errors=True)


def _namespace_digest() -> str:
    """Return an identifier of this boot and pid namespace, within which pids are unique."""
    return hashlib.sha256(platform.pid_namespace_id().encode()).hexdigest()[:8]


def _process_label(pid: int) -> str:
    return f"{pid}-{platform.process_start_time(pid)}"


# The rank's environment

# Variables of the supervisor's launcher that would mislead a rank: torch would look for torchrun's store, for example.
_LAUNCHER_PREFIXES = ("GROUP_", "PET_", "ROLE_", "TORCHELASTIC_")
_LAUNCHER_VARIABLES = ("HEADWAY_HOSTS", "HEADWAY_NODE", "TF_CONFIG")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """Secret values, held in this process only.

    `variables` go into the ranks' environment: each is the value, or the path of a file that contains it.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()


def resolve_secrets(plan: Plan, env: Mapping[str, str], folder: Path, resolve: Callable[[str], str]) -> Secrets:
    """Look up every secret of the job once. Raises before anything is started if one cannot be resolved."""
    injected = injected_secrets(env)
    variables, values = {}, list(injected.values())
    for name, secret in plan.job.get("secrets", {}).items():
        reference = str(secret["ref"])
        by_cluster = reference.startswith("k8s://") and name in env  # only the cluster can read it
        value = env[name] if name in injected or by_cluster else resolve(reference)
        values.append(value)
        if secret.get("as", secret.get("as_")) == "file":
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(value)
            value = str(path)
        variables[name] = value
    return Secrets(variables=variables, values=tuple(values))


def omp_threads(plan: Plan, topology: NodeTopology) -> str:
    """Return OMP_NUM_THREADS of every rank: the job's value, the plan's, or an equal share of the node's CPUs."""
    chosen = plan.job.get("env", {}).get("OMP_NUM_THREADS") or plan.environment.get("threads")
    return str(chosen or max(1, cpus_here() // topology.processes))


def argv(plan: Plan, code: Path) -> tuple[str, ...]:
    """Return the command line of the recipe, of the user's Python script, or of the user's executable."""
    if plan.job.get("recipe"):
        return (sys.executable, "-m", "headway.recipes")
    script, args = str(plan.job.get("script") or ""), tuple(map(str, plan.job.get("args", ())))
    path = code / script
    if not script or not path.is_file():
        raise BadInput(f"there is no {script!r} in the uploaded code", where=str(code), fix="headway plan")
    if path.suffix == ".py":
        return (sys.executable, script, *args)
    if not os.access(path, os.X_OK):
        raise BadInput(f"{script} is neither a .py file nor executable", where=str(code), fix=f"chmod +x {script}")
    return (str(path), *args)


def rank_command(
    plan: Plan,
    topology: NodeTopology,
    local_rank: int,
    *,
    base: Mapping[str, str],
    run: Mapping[str, str],
    workdirs: Workdirs,
    secrets: Secrets,
) -> Command:
    """Build one rank's command from the supervisor's environment (`base`) and the variables of this attempt (`run`)."""
    inherited = {
        name: value
        for name, value in base.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _LAUNCHER_VARIABLES
    }
    topology_variables = rank_env(topology, local_rank)
    job_variables: dict[str, Any] = {name: str(value) for name, value in plan.job.get("env", {}).items()}
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name in base or name in job_variables:
            topology_variables.pop(name, None)  # a network interface set by the user or the platform takes precedence
    if (
        "PYTHONPATH" in base and "PYTHONPATH" in job_variables
    ):  # the base path may contain the planned Headway: keep both
        job_variables["PYTHONPATH"] = _join_search_paths(base["PYTHONPATH"], job_variables["PYTHONPATH"])
    env = {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        # Spin only briefly at OpenMP barriers: when another process takes one of the cores, long spinning makes torch
        # several times slower (measured: 3.4 against 18 steps/s with two threads).
        "GOMP_SPINCOUNT": "1000",
        **job_variables,
        **secrets.variables,
        **topology_variables,
        **run,
        "OMP_NUM_THREADS": omp_threads(plan, topology),
        "HEADWAY_CODE_DIR": str(workdirs.code),
        "HEADWAY_RUN_DIR": str(workdirs.files),
        "HEADWAY_RESUME_DIR": str(workdirs.resume),
    }
    return Command(rank=topology.ranks[local_rank], argv=argv(plan, workdirs.code), env=env, cwd=workdirs.code)


def _join_search_paths(*paths: str) -> str:
    """Join several search paths, without duplicate folders."""
    return os.pathsep.join(dict.fromkeys(folder for path in paths for folder in path.split(os.pathsep) if folder))
