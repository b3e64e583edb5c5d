"""Manifests of all objects of a run, in the order of their creation. Pure: they can be printed, diffed, reviewed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.platform import timing
from headway.core.types import Request
from headway.targets.kubernetes import pod, pytorchjob, statefulset, trainjob
from headway.targets.kubernetes.options import FUSE_UID, Options, Trainer, metadata, owned_by

if TYPE_CHECKING:
    from headway.core.plan import Plan


# The creation guard ("fuse"): a Job without pods that owns a run's objects while they are being created. Pure.
#
# The object that starts the run is created suspended and owned by the guard. The last request, one PATCH, removes the
# owner reference and starts it. If the client dies earlier, the guard expires (ttlSecondsAfterFinished) and
# Kubernetes deletes everything with it; nothing has run by then.


Object = dict[str, Any]
FUSE, START = "fuse.json", "start.patch.json"
NAME = f"{RUN}-fuse"
BURNS_S = 600  # far longer than any client needs; `fuse` in the job's HEADWAY_TIMING overrides it


def laid(plan: Plan, options: Options, first: Request, others: list[Request], start: Object) -> list[Request]:
    """Return all requests of a start: the guard, the starting object, its dependencies, and the starting patch."""
    resting = {**first.body, "metadata": {**first.body["metadata"], "ownerReferences": [_owner()]}}
    return [
        Request(name=FUSE, body=_job(plan, options)),
        Request(name=first.name, body=resting),
        *others,
        Request(name=START, body=_stroke(first.body, start)),
    ]


def _stroke(body: Mapping[str, Any], start: Object) -> Object:
    """Return the merge patch that removes the owner references and starts the run."""
    named = {key: body["metadata"][key] for key in ("name", "namespace")}
    own = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    return {**own, "metadata": {**named, "ownerReferences": None}, "spec": start}


def _owner() -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": NAME, "uid": FUSE_UID}


def _job(plan: Plan, options: Options) -> Object:
    """Return the guard: a Job that completes at once, with 0 completions, so that its TTL starts immediately."""
    part = metadata(plan, options, NAME, part="fuse")
    never: Object = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": pod.security(options),
        "containers": [
            {"name": "fuse", "image": pod.image(plan), "command": ["true"], "securityContext": pod.confined()}
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": part,
        "spec": {
            "completions": 0,
            "ttlSecondsAfterFinished": _burns_s(plan),
            "template": {
                "metadata": {key: part[key] for key in ("labels", "annotations")},
                "spec": never,
            },
        },
    }


def _burns_s(plan: Plan) -> int:
    return int(timing(plan.job.get("env", {})).get("fuse", BURNS_S))


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
    return laid(plan, options, first, [*_secret(plan, options), *others], _STARTS[options.engine])


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
