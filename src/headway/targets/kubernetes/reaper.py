"""The reaper: a small Job that scales up the StatefulSet of a run and deletes it when the run is over.

`python -m headway.targets.kubernetes.reaper --run URL --namespace NS --set NAME --workers N …`
It is the only pod with a token, which is valid for this one StatefulSet. Age is measured by the API server's clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from headway.core.errors import HeadwayError, UnknownRun
from headway.core.types import State
from headway.targets.kubernetes import client, kubeconfig
from headway.targets.kubernetes.client import ApiError, Client, Forbidden, Object
from headway.targets.kubernetes.entry import use_secrets

if TYPE_CHECKING:
    from headway.rundir.layout import RunFolder

LOOK_S = 10.0
BIRTH_S = 600.0  # wait for a StatefulSet or a permission that is not there yet; HEADWAY_BIRTH_S overrides it
FOR_GOOD = (State.FINISHED, State.FAILED, State.BUDGET)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaperConfig:
    """The StatefulSet to guard, and its time limits."""

    url: str
    namespace: str
    name: str
    workers: int
    lifetime_s: float | None
    max_wait_s: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    watched = _arguments(arguments)
    use_secrets(os.environ)
    api = Client(access=kubeconfig.in_pod())
    look_s = float(os.environ.get("HEADWAY_LOOK_S", LOOK_S))
    birth_s = float(os.environ.get("HEADWAY_BIRTH_S", BIRTH_S))
    return guard(watched, api, wait=lambda: asked.wait(look_s), say=_say, birth_s=birth_s)


def guard(
    watched: ReaperConfig,
    api: Client,
    *,
    wait: Callable[[], bool],
    say: Callable[[str], None],
    birth_s: float | None = None,
) -> int:
    """Poll until the StatefulSet is gone; return 0, or 143 if `wait` reports SIGTERM first."""
    birth_s = BIRTH_S if birth_s is None else birth_s
    began, seen = time.monotonic(), False
    while True:
        try:
            found = _set(watched, api)
            seen = seen or found is not None
            if found is None and (seen or time.monotonic() - began > birth_s):
                say(f"statefulset/{watched.name} is gone" if seen else f"there never was a statefulset/{watched.name}")
                return 0
            if found is not None and "deletionTimestamp" not in found["metadata"]:
                _tend(watched, api, found, say)
        except ApiError as error:  # e.g. a cluster upgrade, or a RoleBinding not effective yet
            say(str(error.problem.what))
        if wait():
            return 143


def _tend(watched: ReaperConfig, api: Client, found: Object, say: Callable[[str], None]) -> None:
    """Delete the StatefulSet if the run must end; else scale it up, once: a later change of replicas is deliberate."""
    why = reason(watched, _age_s(found, api), say)
    if why:
        say(f"deleting statefulset/{watched.name}: {why}")
        client.delete(api, "StatefulSet", watched.namespace, watched.name, policy="Foreground")
    elif found["spec"]["replicas"] == 0 and found["metadata"]["generation"] == 1:
        say(f"calling {watched.workers} workers")
        client.scale(api, "StatefulSet", watched.namespace, watched.name, watched.workers)


def reason(watched: ReaperConfig, age_s: float, say: Callable[[str], None]) -> str:
    """Return why the run must end now, or an empty string. An unreadable store never ends it before its lifetime."""
    if watched.lifetime_s is not None and age_s > watched.lifetime_s:
        return f"its time of {watched.lifetime_s:g} s is up"
    from headway.rundir.layout import RunFolder
    from headway.storage import open_store

    try:
        return _by_folder(watched, age_s, RunFolder(open_store(watched.url)))
    except UnknownRun:
        return "its run folder is gone"
    except HeadwayError as error:
        say(f"the run folder cannot be read: {error}")
        return ""


def _by_folder(watched: ReaperConfig, age_s: float, folder: RunFolder) -> str:
    from headway.rundir.layout import STOP
    from headway.rundir.status import read_status_inputs

    found = read_status_inputs(folder)
    if found.end is not None and found.end.state in FOR_GOOD:
        return f"the run is {found.end.state.value}"
    if found.end is not None and folder.read_json(STOP) is not None:
        return "the run was stopped"
    if not found.started and watched.max_wait_s is not None and age_s > watched.max_wait_s:
        return f"it has waited for more than {watched.max_wait_s:g} s"
    return ""


def _set(watched: ReaperConfig, api: Client) -> Object | None:
    try:
        return client.read(api, "StatefulSet", watched.namespace, watched.name)
    except Forbidden:
        return None  # the RoleBinding is created just before the reaper and may not be effective yet


def _age_s(found: Object, api: Client) -> float:
    """Return the StatefulSet's age; both timestamps are from the server's clock."""
    born = datetime.fromisoformat(str(found["metadata"]["creationTimestamp"]).replace("Z", "+00:00"))
    return (parsedate_to_datetime(api.date) - born).total_seconds()


def _arguments(arguments: Sequence[str] | None) -> ReaperConfig:
    parser = argparse.ArgumentParser(prog="python -m headway.targets.kubernetes.reaper")
    parser.add_argument("--run", required=True, metavar="URL")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--set", required=True, metavar="NAME")
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("--lifetime", type=float, default=None, metavar="S")
    parser.add_argument("--max-wait", type=float, default=None, metavar="S")
    args = parser.parse_args(arguments)
    return ReaperConfig(
        url=args.run,
        namespace=args.namespace,
        name=args.set,
        workers=args.workers,
        lifetime_s=args.lifetime,
        max_wait_s=args.max_wait,
    )


def _say(text: str) -> None:
    print(f"headway: {text}", flush=True)  # noqa: T201  the pod's log is its only log


if __name__ == "__main__":
    sys.exit(main())
