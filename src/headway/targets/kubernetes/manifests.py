"""Manifests of all objects of a run, in the order of their creation. Pure: they can be printed, diffed, reviewed."""

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
    """Build all requests of a start.

    `release` is that of the installed Kubeflow Trainer; `spent_s` is the part of the budget used before a resume.
    """
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
    """Return the placeholder for a secret's value: a plan contains only its reference."""
    return f"<{reference}>"


def _secret(plan: Plan, options: Options) -> list[Request]:
    """Build the Secret for values sent by the client: labelled, and owned by the object that starts the run."""
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
