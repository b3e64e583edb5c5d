"""Ending a run in a cluster: delete what trains, wait, force, delete the rest, look again. The receipt is that look."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.targets.afar import said_farewell_or_never_began
from headway.targets.base import ORIGIN, Handle, Receipt
from headway.targets.here import FAREWELL_S, LEAVING_S, grace_s
from headway.targets.kubernetes import kinds, seen
from headway.targets.kubernetes.api import Api, Object
from headway.targets.kubernetes.names import selector
from headway.targets.kubernetes.options import Options

LOOK_S = 0.5
FORCE_S = 60.0  # for what was deleted by force to be gone from the listing
SETTLE_S = 60.0  # for the cluster's garbage collector
_TRAINING = ("StatefulSet", "PyTorchJob", "TrainJob")


def take_down(api: Api, options: Options, handle: Handle) -> Receipt:
    """Everything of this run, found by label. What is gone already is success."""
    before = _everything(api, options, handle)
    ended = said_farewell_or_never_began(handle)
    patience = LEAVING_S if ended else grace_s(handle) + FAREWELL_S
    for item in before:
        if item["kind"] in _TRAINING:
            kinds.delete(api, item["kind"], options.namespace, item["metadata"]["name"])
    _await(lambda: not _live_pods(api, options, handle), patience + LEAVING_S)
    remove(api, options, handle.run, handle.url)
    left = sorted(map(kinds.shown, _everything(api, options, handle)))
    known = [] if handle.details.get(ORIGIN) else [str(each) for each in handle.details.get("objects", ())]
    created = list(dict.fromkeys([*map(kinds.shown, before), *known]))
    return Receipt(
        run=handle.run,
        created=tuple(created),
        removed=tuple(name for name in created if name not in left),
        left=tuple(left),
    )


def remove(api: Api, options: Options, run: str, url: str) -> None:
    """By force: pods that have had their time are not asked again. Names are free again when this returns."""
    chosen, needed = selector(run, url), kinds.KINDS_OF[options.engine]
    there = kinds.everything(api, options.namespace, chosen, needed=needed)
    for item in there:
        by_force = 0 if item["kind"] == "Pod" else None
        kinds.delete(api, item["kind"], options.namespace, item["metadata"]["name"], grace_s=by_force)
    for pod in seen.workers(api, options, run, url):
        kinds.delete(api, "Pod", options.namespace, pod.name, grace_s=0)
    _await(lambda: not seen.workers(api, options, run, url), FORCE_S)
    if there:
        _await(lambda: not kinds.everything(api, options.namespace, chosen, needed=needed), SETTLE_S)


def _everything(api: Api, options: Options, handle: Handle) -> list[Object]:
    chosen = selector(handle.run, handle.url)
    return kinds.everything(api, options.namespace, chosen, needed=kinds.KINDS_OF[options.engine])


def _live_pods(api: Api, options: Options, handle: Handle) -> list[seen.Pod]:
    return [pod for pod in seen.workers(api, options, handle.run, handle.url) if pod.live]


def _await(done: Callable[[], bool], within_s: float) -> None:
    limit = time.monotonic() + within_s
    while not done() and time.monotonic() < limit:
        time.sleep(LOOK_S)
