"""What everything of a run is called and labelled in a cluster, and what stands in a plan until launch. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.planning.model import RUN
from headway.storage import join
from headway.targets.base import EXPIRES_LABEL, OWNER, OWNER_LABEL, OWNER_NAME, OWNER_NAME_LABEL, RUN_LABEL
from headway.targets.kubernetes.options import Options

if TYPE_CHECKING:
    from headway.planning.model import Plan

KIND = "kubernetes"
URL_ANNOTATION = "headway.url"  # a label's value may not be a URL …
FOLDER_LABEL = "headway.folder"  # … so that a label carries its hash: two folders may each hold a run of one name
PART_LABEL = "headway.part"  # worker, reaper or fuse

# Stand in a plan until launch.
OWNER_UID, FUSE_UID, EXPIRES, FOLDER = "{OWNER_UID}", "{FUSE_UID}", "{EXPIRES}", "{FOLDER}"
REAPER = f"{RUN}-reaper"

# Inside a pod.
CODE, NODE, HOME, WHEEL = "/headway/code", "/headway/node", "/home/headway", "/headway/wheel"
SECRETS, WORK = "/headway/secrets", "/run/headway"
MASTER_PORT = 29500


def url_of(plan: Plan, run: str = RUN) -> str:
    return join(str(plan.job["outputs"]), run)


def folder_hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:12]


def metadata(plan: Plan, options: Options, name: str, *, part: str | None = None) -> dict[str, Any]:
    """Of everything that is made: `down` finds it again by these labels, without a database."""
    return {
        "name": name,
        "namespace": options.namespace,
        "labels": labels(plan, options, part=part),
        "annotations": {URL_ANNOTATION: url_of(plan), OWNER_NAME_LABEL: OWNER_NAME},
    }


def labels(plan: Plan, options: Options, *, part: str | None = None) -> dict[str, str]:
    found = {
        **{str(key): str(value) for key, value in options.labels.items()},
        "app.kubernetes.io/managed-by": "headway",
        RUN_LABEL: RUN,
        FOLDER_LABEL: FOLDER,
        OWNER_LABEL: OWNER,
    }
    if plan.limits.budget_s is not None:
        found[EXPIRES_LABEL] = EXPIRES
    if part is not None:
        found[PART_LABEL] = part
    return found


def selector(run: str, url: str) -> str:
    """The label selector by which all of a run is found."""
    return f"{RUN_LABEL}={run},{FOLDER_LABEL}={folder_hash(url)}"


def owned_by(api_version: str, kind: str, name: str) -> list[dict[str, Any]]:
    """Whoever goes takes what it owns along."""
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": OWNER_UID}]


def filled(body: Any, values: Mapping[str, str]) -> Any:
    """A rendered object with the launch's values where their names stand."""
    if isinstance(body, str):
        for name, value in values.items():
            body = body.replace(name, value)
        return body
    if isinstance(body, Mapping):
        return {key: filled(value, values) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [filled(value, values) for value in body]
    return body
