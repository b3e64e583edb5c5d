"""What a rank runs, where, and with which environment. Secrets become values here and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.planning.model import Plan
from headway.runtime.brought import values as values_brought
from headway.runtime.places import Places
from headway.runtime.ranks import Command
from headway.runtime.world import NodeWorld, cpus_here, rank_env

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
    brought = values_brought(env)
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


def threads(plan: Plan, world: NodeWorld) -> str:
    """OMP_NUM_THREADS of every rank: the job's word, the plan's, or an equal share of this node's CPUs."""
    chosen = plan.job.get("env", {}).get("OMP_NUM_THREADS") or plan.environment.get("threads")
    return str(chosen or max(1, cpus_here() // world.processes))


def argv(plan: Plan, code: Path) -> tuple[str, ...]:
    """The recipe, the user's Python script, or the user's program."""
    if plan.job.get("recipe"):
        return (sys.executable, "-m", "headway.recipes.main")
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
    world: NodeWorld,
    local_rank: int,
    *,
    base: Mapping[str, str],
    run: Mapping[str, str],
    places: Places,
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
