"""All objects of a run, in the order in which they are made. Pure: print them, diff them, review them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.types import Request
from headway.targets.kubernetes import creation_guard, pod
from headway.targets.kubernetes.engines import pytorchjob, statefulset, trainjob
from headway.targets.kubernetes.options import Options, Trainer, metadata, owned_by

if TYPE_CHECKING:
    from headway.core.plan import Plan

WORKLOAD = {"statefulset": "StatefulSet", "pytorchjob": pytorchjob.KIND, "trainjob": trainjob.KIND}
_STARTS = {"statefulset": statefulset.START, "pytorchjob": pytorchjob.START, "trainjob": trainjob.START}
_OWNERS = {"statefulset": statefulset.OWNER, "pytorchjob": pytorchjob.OWNER, "trainjob": trainjob.OWNER}


def requests(plan: Plan, options: Options, *, release: Trainer | None = None, spent_s: float = 0.0) -> list[Request]:
    """`release` is the installed TrainJob's; a run that goes on has `spent_s` of its budget behind it."""
    if options.engine == "statefulset":
        found = statefulset.requests(plan, options, spent_s)
    elif options.engine == "pytorchjob":
        found = pytorchjob.requests(plan, options, spent_s)
    else:
        chosen: Trainer = release or options.trainer or pod.NEWEST
        found = trainjob.requests(plan, options, chosen, spent_s)
    first, *others = found
    return creation_guard.laid(plan, options, first, [*_secret(plan, options), *others], _STARTS[options.engine])


def reference_mark(reference: str) -> str:
    """Stands where a secret's value will be: in a plan there is only where it lies."""
    return f"<{reference}>"


def _secret(plan: Plan, options: Options) -> list[Request]:
    """Labelled, owned by what starts the run, and removed with it."""
    wanted = pod.brought(plan)
    if not wanted:
        return []
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {**metadata(plan, options, RUN), "ownerReferences": owned_by(*_OWNERS[options.engine])},
        "stringData": {name: reference_mark(reference) for name, reference in wanted.items()},
    }
    return [Request(name="secret.json", body=body)]
