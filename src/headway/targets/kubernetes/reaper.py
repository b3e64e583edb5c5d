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
from headway.core.platform import timing
from headway.core.types import State
from headway.targets.kubernetes import client, kubeconfig
from headway.targets.kubernetes.client import ApiError, Client, Forbidden, Object
from headway.targets.kubernetes.entry import use_secrets

if TYPE_CHECKING:
    from headway.rundir.layout import RunFolder

POLL_S = 10.0
START_WAIT_S = 600.0  # wait for a StatefulSet or a permission that is not there yet; HEADWAY_TIMING may override it
TERMINAL_STATES = (State.FINISHED, State.FAILED, State.BUDGET)


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
    stop_signals = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop_signals.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    config = _parse_arguments(arguments)
    use_secrets(os.environ)
    api = Client(access=kubeconfig.in_pod())
    chosen = timing(os.environ)
    poll_s, start_wait_s = chosen.get("reaper_poll", POLL_S), chosen.get("reaper_wait", START_WAIT_S)
    return watch_run(config, api, wait=lambda: stop_signals.wait(poll_s), log=_log, start_wait_s=start_wait_s)


def watch_run(
    config: ReaperConfig,
    api: Client,
    *,
    wait: Callable[[], bool],
    log: Callable[[str], None],
    start_wait_s: float | None = None,
) -> int:
    """Poll until the StatefulSet is gone; return 0, or 143 if `wait` reports SIGTERM first."""
    start_wait_s = START_WAIT_S if start_wait_s is None else start_wait_s
    began, existed = time.monotonic(), False
    while True:
        try:
            workload = _read_stateful_set(config, api)
            existed = existed or workload is not None
            if workload is None and (existed or time.monotonic() - began > start_wait_s):
                log(f"statefulset/{config.name} is gone" if existed else f"there never was a statefulset/{config.name}")
                return 0
            if workload is not None and "deletionTimestamp" not in workload["metadata"]:
                _reconcile(config, api, workload, log)
        except ApiError as error:  # e.g. a cluster upgrade, or a RoleBinding not effective yet
            log(str(error.problem.what))
        if wait():
            return 143


def _reconcile(config: ReaperConfig, api: Client, workload: Object, log: Callable[[str], None]) -> None:
    """Delete the StatefulSet if the run must end; else scale it up, once: a later change of replicas is deliberate."""
    why = deletion_reason(config, _age_s(workload, api), log)
    if why:
        log(f"deleting statefulset/{config.name}: {why}")
        client.delete(api, "StatefulSet", config.namespace, config.name, policy="Foreground")
    elif workload["spec"]["replicas"] == 0 and workload["metadata"]["generation"] == 1:
        log(f"calling {config.workers} workers")
        client.scale(api, "StatefulSet", config.namespace, config.name, config.workers)


def deletion_reason(config: ReaperConfig, age_s: float, log: Callable[[str], None]) -> str:
    """Return why the run must end now, or an empty string. An unreadable store never ends it before its lifetime."""
    if config.lifetime_s is not None and age_s > config.lifetime_s:
        return f"its time of {config.lifetime_s:g} s is up"
    from headway.rundir.layout import RunFolder
    from headway.storage import open_store

    try:
        return _reason_from_folder(config, age_s, RunFolder(open_store(config.url)))
    except UnknownRun:
        return "its run folder is gone"
    except HeadwayError as error:
        log(f"the run folder cannot be read: {error}")
        return ""


def _reason_from_folder(config: ReaperConfig, age_s: float, folder: RunFolder) -> str:
    from headway.rundir.layout import STOP
    from headway.rundir.status import read_status_inputs

    inputs = read_status_inputs(folder)
    if inputs.end is not None and inputs.end.state in TERMINAL_STATES:
        return f"the run is {inputs.end.state.value}"
    if inputs.end is not None and folder.read_json(STOP) is not None:
        return "the run was stopped"
    if not inputs.started and config.max_wait_s is not None and age_s > config.max_wait_s:
        return f"it has waited for more than {config.max_wait_s:g} s"
    return ""


def _read_stateful_set(config: ReaperConfig, api: Client) -> Object | None:
    try:
        return client.read(api, "StatefulSet", config.namespace, config.name)
    except Forbidden:
        return None  # the RoleBinding is created just before the reaper and may not be effective yet


def _age_s(workload: Object, api: Client) -> float:
    """Return the StatefulSet's age; both timestamps are from the server's clock."""
    created_at = datetime.fromisoformat(str(workload["metadata"]["creationTimestamp"]).replace("Z", "+00:00"))
    return (parsedate_to_datetime(api.date) - created_at).total_seconds()


def _parse_arguments(arguments: Sequence[str] | None) -> ReaperConfig:
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


def _log(text: str) -> None:
    print(f"headway: {text}", flush=True)  # noqa: T201  the pod's log is its only log


if __name__ == "__main__":
    sys.exit(main())
