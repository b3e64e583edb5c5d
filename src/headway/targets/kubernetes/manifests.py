"""Manifests of all objects of a run, in the order of their creation. Pure: they can be printed, diffed, reviewed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.platform import timing
from headway.core.types import Request
from headway.targets.kubernetes import pod, pytorchjob, statefulset, trainjob
from headway.targets.kubernetes.options import GUARD_UID, Options, Trainer, metadata, owned_by

if TYPE_CHECKING:
    from headway.core.plan import Plan


# The creation guard ("fuse"): a Job without pods that owns a run's objects while they are being created. Pure.
#
# The object that starts the run is created suspended and owned by the guard. The last request, one PATCH, removes the
# owner reference and starts it. If the client dies earlier, the guard expires (ttlSecondsAfterFinished) and
# Kubernetes deletes everything with it; nothing has run by then.


Object = dict[str, Any]
GUARD_FILE, START_FILE = "fuse.json", "start.patch.json"
GUARD_NAME = f"{RUN}-fuse"
GUARD_TTL_S = 600  # far longer than any client needs; `fuse` in the job's HEADWAY_TIMING overrides it


def guarded_requests(
    plan: Plan, options: Options, first: Request, others: list[Request], start: Object
) -> list[Request]:
    """Return all requests of a start: the guard, the starting object, its dependencies, and the starting patch."""
    suspended = {**first.body, "metadata": {**first.body["metadata"], "ownerReferences": [_guard_reference()]}}
    return [
        Request(name=GUARD_FILE, body=_guard_job(plan, options)),
        Request(name=first.name, body=suspended),
        *others,
        Request(name=START_FILE, body=_start_patch(first.body, start)),
    ]


def _start_patch(body: Mapping[str, Any], start: Object) -> Object:
    """Return the merge patch that removes the owner references and starts the run."""
    identity = {key: body["metadata"][key] for key in ("name", "namespace")}
    type_meta = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    return {**type_meta, "metadata": {**identity, "ownerReferences": None}, "spec": start}


def _guard_reference() -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": GUARD_NAME, "uid": GUARD_UID}


def _guard_job(plan: Plan, options: Options) -> Object:
    """Return the guard: a Job that completes at once, with 0 completions, so that its TTL starts immediately."""
    guard_metadata = metadata(plan, options, GUARD_NAME, part="fuse")
    pod_spec: Object = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": pod.security(options),
        "containers": [
            {"name": "fuse", "image": pod.image(plan), "command": ["true"], "securityContext": pod.container_security()}
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": guard_metadata,
        "spec": {
            "completions": 0,
            "ttlSecondsAfterFinished": _guard_ttl_s(plan),
            "template": {
                "metadata": {key: guard_metadata[key] for key in ("labels", "annotations")},
                "spec": pod_spec,
            },
        },
    }


def _guard_ttl_s(plan: Plan) -> int:
    return int(timing(plan.job.get("env", {})).get("fuse", GUARD_TTL_S))


WORKLOAD = {"statefulset": "StatefulSet", "pytorchjob": pytorchjob.KIND, "trainjob": trainjob.KIND}
_START_SPECS = {"statefulset": statefulset.START, "pytorchjob": pytorchjob.START, "trainjob": trainjob.START}
_OWNER_REFERENCES = {"statefulset": statefulset.OWNER, "pytorchjob": pytorchjob.OWNER, "trainjob": trainjob.OWNER}


def requests(plan: Plan, options: Options, *, release: Trainer | None = None, spent_s: float = 0.0) -> list[Request]:
    """Build all requests of a start.

    `release` is that of the installed Kubeflow Trainer; `spent_s` is the part of the budget used before a resume.
    """
    if options.engine == "statefulset":
        workload = statefulset.requests(plan, options, spent_s)
    elif options.engine == "pytorchjob":
        workload = pytorchjob.requests(plan, options, spent_s)
    else:
        trainer: Trainer = release or options.trainer or pod.NEWEST
        workload = trainjob.requests(plan, options, trainer, spent_s)
    first, *others = workload
    return guarded_requests(
        plan, options, first, [*_secret_request(plan, options), *others], _START_SPECS[options.engine]
    )


def secret_placeholder(reference: str) -> str:
    """Return the placeholder for a secret's value: a plan contains only its reference."""
    return f"<{reference}>"


def _secret_request(plan: Plan, options: Options) -> list[Request]:
    """Build the Secret for values sent by the client: labelled, and owned by the object that starts the run."""
    references = pod.client_secrets(plan)
    if not references:
        return []
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {**metadata(plan, options, RUN), "ownerReferences": owned_by(*_OWNER_REFERENCES[options.engine])},
        "stringData": {name: secret_placeholder(reference) for name, reference in references.items()},
    }
    return [Request(name="secret.json", body=body)]
