"""Where to look at a run in a browser. Made from what is known; asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from headway.targets.kubernetes.options import Options

if TYPE_CHECKING:
    from headway.targets.base import Handle

CONSOLE = "https://console.cloud.google.com"


def links(handle: Handle, options: Options, context: str) -> dict[str, str]:
    """Cloud Logging with the filter filled in, and the workload's page, where the cluster is Google's."""
    project, location, cluster = of_gke(options, context)
    if not project or options.platform != "gke":
        return {}
    wanted = {
        "resource.type": "k8s_container",
        "resource.labels.namespace_name": options.namespace,
        'labels."k8s-pod/headway_run"': handle.run,
    }
    if cluster:
        wanted["resource.labels.cluster_name"] = cluster
    # Cloud Logging writes the dots of a pod's labels as underscores.
    text = "\n".join(f'{key}="{value}"' for key, value in wanted.items())
    found = {"logs": f"{CONSOLE}/logs/query;query={quote(text, safe='')}?project={project}"}
    if location and cluster and options.engine == "statefulset":
        page = f"statefulset/{location}/{cluster}/{options.namespace}/{handle.run}"
        found["workload"] = f"{CONSOLE}/kubernetes/{page}?project={project}"
    return found


def of_gke(options: Options, context: str) -> tuple[str, str, str]:
    """Project, location and cluster: the target's entry, or the name that gcloud gives to contexts."""
    prefix, *parts = context.split("_")
    named = parts if prefix == "gke" and len(parts) == 3 else ["", "", ""]
    return options.project or named[0], options.location or named[1], options.cluster or named[2]


def get_credentials(options: Options, context: str = "") -> str:
    """What to type where no cluster is known here."""
    project, location, cluster = of_gke(options, context)
    where = f"--location {location or 'LOCATION'} --project {project or 'PROJECT'}"
    return f"gcloud container clusters get-credentials {cluster or 'CLUSTER'} {where}"
