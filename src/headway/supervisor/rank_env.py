"""Build each rank's command, working folder and environment; create the supervisor's folders; resolve secrets.

In the supervisor, secret references become values in `resolve_secrets` alone; the caller passes the lookup function.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from headway.core import platform
from headway.core.errors import BadInput
from headway.core.plan import Plan
from headway.core.program import DATA, entry_files, fill_placeholders, is_project, uses_project_code
from headway.integrations.stacks import STACKS_FILE
from headway.supervisor.image_entry import ADDED
from headway.supervisor.processes import Command
from headway.supervisor.project_python import PYTHON, python_path, require_python, search_path
from headway.supervisor.stacks import stack_file
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
class NodeFolders:
    """The supervisor's folders on this node."""

    work: Path  # private to this supervisor
    spool: Path
    files: Path  # $HEADWAY_RUN_DIR
    resume: Path  # $HEADWAY_RESUME_DIR
    code: Path


def make_node_folders(env: Mapping[str, str]) -> NodeFolders:
    """Create the folders. Large ones go beside HEADWAY_SPOOL if the target set it, else into a temporary folder."""
    parent = Path(env.get("HEADWAY_WORK_DIR") or tempfile.gettempdir())
    _remove_stale_workdirs(parent)
    work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_namespace_digest()}-{_process_label(os.getpid())}-", dir=parent))
    spool = Path(env.get("HEADWAY_SPOOL") or work / "spool").absolute()
    parent_dir = spool.parent
    spool.mkdir(parents=True, exist_ok=True)
    return NodeFolders(
        work=work,
        spool=spool,
        files=Path(env.get("HEADWAY_RUN_DIR") or parent_dir / "files").absolute(),
        resume=parent_dir / "resume",
        code=Path(env.get("HEADWAY_CODE_DIR") or Path.cwd()).absolute(),
    )


def remove_workdirs(workdirs: NodeFolders, *, files: bool) -> None:
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
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# .get("RANK"), .get("RANK", -1), "RANK" in os.environ; not .get("RANK", 0), which says nothing about torchrun.
_TORCHRUN_CHECK = re.compile(
    rb"""(?:\bget|getenv)\(\s*(["'])(?:RANK|WORLD_SIZE)\1\s*(?:\)|,\s*["']?(?:-1|None)\b)"""
    rb"""|(["'])(?:RANK|WORLD_SIZE)\2\s+(?:not\s+)?in\s+(?:os\.)?environ\b"""
)
# Accelerate, also below the Trainer, makes a process group of one where RANK is set, and warns of it.
_ASKS_BY_ITSELF = re.compile(rb"^\s*(?:import|from)\s+(?:accelerate|transformers|trl)\b", re.MULTILINE)
_NEEDS_RANK = re.compile(rb"""environ\[\s*(["'])(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\1\s*\]""")
_FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{run_dir}/nccl-trace-rank-",
}
_MAX_SOURCES, _MAX_SOURCE_BYTES = 200, 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """Secret values, held in this process only.

    `variables` go into the ranks' environment: each is the value, or the path of a file that contains it.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # written into the project's folder, removed at the end


def resolve_secrets(
    plan: Plan, env: Mapping[str, str], folder: Path, code: Path, resolve: Callable[[str], str]
) -> Secrets:
    """Look up every secret of the job once. Raises before anything is started if one cannot be resolved.

    `code` is the project's folder, for secrets that it reads from a path of its own (`at`).
    """
    injected = injected_secrets(env)
    variables, values, files = {}, list(injected.values()), []
    for name, secret in plan.job.get("secrets", {}).items():
        reference = str(secret["ref"])
        by_cluster = reference.startswith("k8s://") and name in env  # only the cluster can read it
        value = env[name] if name in injected or by_cluster else resolve(reference)
        values.append(value)
        if secret.get("as", secret.get("as_")) == "file":
            folder.mkdir(mode=0o700, exist_ok=True)
            path = code / str(secret["at"]) if secret.get("at") else folder / name
            if _write_secret(path, value, name) and secret.get("at"):
                files.append(path)
            value = str(path)
        variables[name] = value
    return Secrets(variables=variables, values=tuple(values), files=tuple(files))


def _write_secret(path: Path, value: str, name: str) -> bool:
    """Write a secret for this user alone; return False if the file has that content already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text(errors="replace").rstrip("\r\n") == value.rstrip("\r\n"):
        return False
    if path.exists() and path.stat().st_size:
        raise BadInput(
            f"secrets.{name}.at: {path} exists with another content", fix=f"rm {path}, or choose another path"
        )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(value)
    return True


def omp_threads(plan: Plan, topology: NodeTopology) -> str:
    """Return OMP_NUM_THREADS of every rank: the job's value, the plan's, or an equal share of the node's CPUs."""
    chosen = plan.job.get("env", {}).get("OMP_NUM_THREADS") or plan.environment.get("threads")
    return str(chosen or max(1, cpus_here() // topology.processes))


def argv(
    plan: Plan,
    code: Path,
    values: Mapping[str, str],
    env: Mapping[str, str],
    is_from_before: Callable[[Path], bool] = lambda path: False,
) -> tuple[str, ...]:
    """Return the command line of the recipe or of the user's program. `values` fill the placeholders.

    `env` is the supervisor's: its PATH finds the interpreter. `is_from_before` tells files that are not this run's.
    """
    job = plan.job
    if not is_project(job):
        return (sys.executable, "-m", "headway.recipes")
    words = [
        fill_placeholders(str(word), values)
        for word in (*(job.get("args") or ()), *_resume_args(plan, code, values, is_from_before))
    ]
    if job.get("command"):
        first, *others = (fill_placeholders(str(word), values) for word in job["command"])
        return (_program(first, job, env), *others, *words)
    if job.get("module"):
        return (require_python(job, env), "-m", str(job["module"]), *words)
    file = str(job.get("script") or job.get("notebook") or "")
    if not file or not (code / file).is_file():
        raise BadInput(f"there is no {file!r} in the uploaded code", where=str(code), fix="headway plan")
    if job.get("notebook"):
        executed = str(Path(values["run_dir"], Path(file).name))
        return (require_python(job, env), str(Path(__file__).with_name("notebook_entry.py")), file, executed, *words)
    if file.endswith(".py"):
        return (require_python(job, env), file, *words)
    if not os.access(code / file, os.X_OK):
        raise BadInput(f"{file} is neither a .py file nor executable", where=str(code), fix=f"chmod +x {file}")
    return (str(code / file), *words)


def _program(name: str, job: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return a command's program. In an image without `python`, that is its `python3`."""
    if name != "python" or shutil.which(name, path=search_path(job, env)):
        return name
    return require_python(job, env)


def _resume_args(
    plan: Plan, code: Path, values: Mapping[str, str], is_from_before: Callable[[Path], bool]
) -> tuple[str, ...]:
    """Return the job's `resume.args` if an earlier attempt of this run has left what they name."""
    resume = plan.job.get("resume") or {}
    if int(values["attempt"]) == 1:
        return ()
    needed = resume.get("if_exists")
    if needed:
        path = code / fill_placeholders(str(needed), values)
        if not path.exists() or is_from_before(path):
            return ()
    return tuple(map(str, resume.get("args") or ()))


def describe_resume_args(
    plan: Plan, code: Path, values: Mapping[str, str], is_from_before: Callable[[Path], bool]
) -> str:
    """Describe what the job's `resume` does in a later attempt; "" if it has none."""
    args = (plan.job.get("resume") or {}).get("args")
    if not args or int(values["attempt"]) == 1:
        return ""
    added = _resume_args(plan, code, values, is_from_before)
    if added:
        return f"resume: adds {shlex.join(fill_placeholders(word, values) for word in added)}"
    missing = fill_placeholders(str(plan.job["resume"]["if_exists"]), values)
    return f"resume: this run has not written {missing}, so the program starts without {shlex.join(map(str, args))}"


def placeholder_values(
    topology: NodeTopology, local_rank: int, run: Mapping[str, str], workdirs: NodeFolders, data: Mapping[str, str]
) -> dict[str, str]:
    """Return the value of every placeholder for one rank. The pod's are set by Kubernetes alone."""
    values = {
        "run_dir": str(workdirs.files),
        "resume_dir": str(workdirs.resume),
        "run": run.get("HEADWAY_RUN", ""),
        "attempt": run.get("HEADWAY_ATTEMPT", "1"),
        "rank": str(topology.ranks[local_rank]),
        "local_rank": str(local_rank),
        "node": str(topology.node),
        "nodes": str(topology.nodes),
        "world": str(topology.size),
    }
    if "KUBERNETES_SERVICE_HOST" in os.environ:  # a pod's host name is its own name, and resolves to its address
        values |= {"pod.name": socket.gethostname(), "pod.ip": socket.gethostbyname(socket.gethostname())}
    return values | {f"{DATA}{name}": path for name, path in data.items()}


def rank_command(
    plan: Plan,
    topology: NodeTopology,
    local_rank: int,
    *,
    base: Mapping[str, str],
    run: Mapping[str, str],
    workdirs: NodeFolders,
    secrets: Secrets,
    data: Mapping[str, str] | None = None,
    is_from_before: Callable[[Path], bool] = lambda path: False,
) -> Command:
    """Build one rank's command from the supervisor's environment (`base`) and the variables of this attempt (`run`)."""
    own_variables = {*_LAUNCHER_VARIABLES, *base.get(ADDED, "").split(","), ADDED, PYTHON}
    inherited = {
        name: value
        for name, value in base.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in own_variables
    }
    topology_variables = rank_env(topology, local_rank)
    if is_project(plan.job) and topology.size == 1 and _detects_torchrun(plan.job, workdirs.code):
        # Alone it runs as `python train.py` does: with RANK it would ask for NCCL, also where there is no GPU.
        topology_variables = {name: topology_variables[name] for name in topology_variables if name not in _TORCHRUN}
    values = placeholder_values(topology, local_rank, run, workdirs, data or {})
    job_variables: dict[str, Any] = {
        name: fill_placeholders(str(value), values) for name, value in plan.job.get("env", {}).items()
    }
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
        STACKS_FILE: str(stack_file(workdirs.work, topology.ranks[local_rank])),
    }
    if topology.size > 1:  # what NCCL did last is written at its time-out
        recorder = {name: fill_placeholders(value, values) for name, value in _FLIGHT_RECORDER.items()}
        env = {**recorder, **env}
    if is_project(plan.job):  # the project's root is importable, as it is for `python -m`
        own = {**env, PYTHON: base.get(PYTHON, "")}
        folders, hook_variables = python_path(plan.job, own, workdirs.code)
        env |= {"PYTHONPATH": _join_search_paths(*folders), "PATH": search_path(plan.job, own), **hook_variables}
    elif uses_project_code(plan.job):
        env["PYTHONPATH"] = _join_search_paths(env.get("PYTHONPATH", ""), str(workdirs.code))
    words = argv(plan, workdirs.code, values, base, is_from_before)
    return Command(rank=topology.ranks[local_rank], argv=words, env=env, cwd=workdirs.code)


def _detects_torchrun(job: Mapping[str, Any], code: Path) -> bool:
    """Whether a program, or a source beside it, takes RANK or WORLD_SIZE for the sign that torchrun started it."""
    for entry in entry_files(job):
        if (code / entry).is_file():
            sources = [_source(path) for path in sorted((code / entry).parent.glob("*.py"))[:_MAX_SOURCES]]
            if any(map(_TORCHRUN_CHECK.search, sources)):
                return True
            if any(map(_ASKS_BY_ITSELF.search, sources)) and not any(map(_NEEDS_RANK.search, sources)):
                return True
    return False


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size < _MAX_SOURCE_BYTES else b""
    except OSError:
        return b""


def _join_search_paths(*paths: str) -> str:
    """Join several search paths, without duplicate folders."""
    return os.pathsep.join(dict.fromkeys(folder for path in paths for folder in path.split(os.pathsep) if folder))
