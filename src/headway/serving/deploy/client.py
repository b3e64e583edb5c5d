"""Deploy to Cloud Run and Vertex AI over their HTTP APIs. A failed deployment removes what it created."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import BadInput, HeadwayError, TargetError
from headway.core.retry import poll, wait_until
from headway.serving.deploy import vertex
from headway.serving.deploy.model import LABEL, Deployment, Request, take_down
from headway.storage.google import CLOUD_RUN, VERTEX, GoogleClient, NotFound, Service

POLL_S = 3.0
GONE_S = 60.0
READY_S = 1800.0  # a first machine with a GPU and a large image is slow


@dataclass
class Cloud(GoogleClient):
    """API client for one of the services that serve models, in one project."""

    service: Service = VERTEX
    needed_for: str = "headway deploy"

    def url(self, region: str, path: str) -> str:
        return self.service.url(path, region=region)

    def call(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request once, without retries: if the answer is lost, the resource may have been created."""
        return self.request(self.service, method, url, body, idempotent=False)

    def get(self, url: str) -> dict[str, Any]:
        return self.request(self.service, "GET", url)


def cloud_for(d: Deployment) -> Cloud:
    """Return the client for the service that the deployment uses."""
    return Cloud(d.project, service=CLOUD_RUN if d.to == "cloud-run" else VERTEX)


# Cloud Run


def run_service(cloud: Cloud, d: Deployment, requests: list[Request], log: Callable[[str], None]) -> str:
    """Create the service, or replace an existing one that Headway created, and wait until it is ready.

    Return its URL.
    """
    create, *rest = requests
    home = cloud.url(d.region, create.url)
    service_url = f"{home}/{d.name}"
    before = _is_ours(cloud, service_url, d.name)
    if before is None:
        cloud.call("POST", home, create.body)
    else:
        previous_policy = {"resourceVersion": before["metadata"]["resourceVersion"]}
        cloud.call("PUT", service_url, {**create.body, "metadata": {**create.body["metadata"], **previous_policy}})
    log(f"{'replaced' if before else 'created'} the service {d.name}; it is starting")
    try:
        url = _wait_until_ready(cloud, service_url)
        for request in rest:
            cloud.call(request.method, cloud.url(d.region, request.url), request.body)
    except BaseException:  # Ctrl-C too: remove a service that never became ready
        if before is None:
            _roll_back(lambda: cloud.call("DELETE", service_url), d, log)
        raise
    return url


def _roll_back(remove: Callable[[], object], d: Deployment, log: Callable[[str], None]) -> None:
    """Remove what was created, after a failure that the caller raises.

    If the removal fails too, report it without hiding the first error.
    """
    try:
        remove()
    except HeadwayError as error:
        log(f"the created resources could not be removed and may be billed ({error}). Next: {take_down(d)}")


def _is_ours(cloud: Cloud, one: str, name: str) -> dict[str, Any] | None:
    """Return the service of that name, or None. Raises BadInput if Headway did not create it."""
    try:
        found = cloud.get(one)
    except NotFound:
        return None
    if found["metadata"].get("labels", {}).get(LABEL) != name:
        raise BadInput(f"a service {name} already exists, and Headway did not create it", fix="choose another --name")
    return found


def _wait_until_ready(cloud: Cloud, one: str) -> str:
    for _ in poll(POLL_S, within_s=READY_S):
        found = cloud.get(one)
        status = found.get("status", {})
        seen = status.get("observedGeneration") == found["metadata"].get("generation")
        ready: dict[str, Any] = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        if seen and ready.get("status") == "True":
            return str(status["url"])
        if seen and ready.get("status") == "False":
            fix = "read its log: gcloud run services logs read, or try the image: docker run -p 8080:8080 IMAGE"
            raise TargetError(f"the service did not start: {ready.get('message', 'no reason given')}", fix=fix)
    raise TargetError(f"the service has not started within {READY_S:.0f} s", fix="gcloud run services describe")


def remove_service(cloud: Cloud, d: Deployment) -> tuple[list[str], list[str]]:
    """Delete the service; return what was removed, and what is still listed after a minute."""
    service_url = cloud.url(d.region, f"apis/serving.knative.dev/v1/namespaces/{d.project}/services/{d.name}")
    if _is_ours(cloud, service_url, d.name) is None:
        return [], []
    cloud.call("DELETE", service_url)
    gone = wait_until(lambda: _is_ours(cloud, service_url, d.name) is None, POLL_S, within_s=GONE_S)
    return ([f"service {d.name}"], []) if gone else ([], [f"service {d.name}"])


# Vertex AI


def deploy_model(cloud: Cloud, d: Deployment, log: Callable[[str], None]) -> str:
    """Upload the model, deploy it to the endpoint of that name, and undeploy the previous one.

    Return the endpoint's URL.
    """
    upload, create, _ = vertex.requests(d)
    before = _names(cloud, d)
    try:
        made = _wait_for_operation(cloud, d, cloud.call("POST", cloud.url(d.region, upload.url), upload.body))
        name = str(made["model"])
        log(f"uploaded {name}")
        endpoint = next(_list_resources(cloud, d, "endpoints"), None)
        if endpoint is None:
            endpoint = _wait_for_operation(cloud, d, cloud.call("POST", cloud.url(d.region, create.url), create.body))
            log(f"created {endpoint['name']}")
        place = str(endpoint["name"])
        log("starting machines, which takes a few minutes")
        _wait_for_operation(
            cloud,
            d,
            cloud.call("POST", cloud.url(d.region, f"v1/{place}:deployModel"), vertex.deployed(d, name)),
        )
    except BaseException:  # Ctrl-C too: an endpoint is billed even if the deployment failed
        _roll_back(lambda: _delete_all(cloud, d, [each for each in _names(cloud, d) if each not in before]), d, log)
        raise
    _undeploy(cloud, d, place, keep=name)
    return cloud.url(d.region, f"v1/{place}:predict")


def _undeploy(cloud: Cloud, d: Deployment, endpoint: str, *, keep: str | None) -> None:
    """Undeploy every model except `keep`, as each holds machines."""
    found = cloud.get(cloud.url(d.region, f"v1/{endpoint}"))
    for each in found.get("deployedModels", []):
        if keep is None or not same_model(each["model"], keep):
            body = {"deployedModelId": each["id"]}
            _wait_for_operation(cloud, d, cloud.call("POST", cloud.url(d.region, f"v1/{endpoint}:undeployModel"), body))


def same_model(one: str, other: str) -> bool:
    """Compare the model ids at the end of two names: Google may write the project as its number, and adds @VERSION."""
    return one.rpartition("/")[2].partition("@")[0] == other.rpartition("/")[2].partition("@")[0]


def _delete_all(cloud: Cloud, d: Deployment, names: Iterable[str]) -> None:
    for name in names:
        if "/endpoints/" in name:
            _undeploy(cloud, d, name, keep=None)
        _wait_for_operation(cloud, d, cloud.call("DELETE", cloud.url(d.region, f"v1/{name}")))


def remove_endpoint(cloud: Cloud, d: Deployment) -> tuple[list[str], list[str]]:
    """Delete all endpoints of that name with their deployed models, then the models.

    Return what was removed, and what is left.
    """
    there = _names(cloud, d)
    _delete_all(cloud, d, there)
    return there, _names(cloud, d)


def _names(cloud: Cloud, d: Deployment) -> list[str]:
    """List everything with the label, in order of removal: a deployed model cannot be deleted."""
    return [str(each["name"]) for kind in ("endpoints", "models") for each in _list_resources(cloud, d, kind)]


def _list_resources(cloud: Cloud, d: Deployment, kind: str) -> Iterator[dict[str, Any]]:
    url = cloud.url(d.region, f"v1/projects/{d.project}/locations/{d.region}/{kind}")
    for page in cloud.pages(VERTEX, url, query={"filter": f"labels.{vertex.KEY}={d.name}", "pageSize": "100"}):
        yield from page.get(kind, [])


def _wait_for_operation(cloud: Cloud, d: Deployment, operation: Mapping[str, Any]) -> dict[str, Any]:
    url = cloud.url(d.region, f"v1/{operation['name']}")
    return cloud.wait(VERTEX, operation, url, poll_s=POLL_S, within_s=READY_S, fix="headway deploy --down")
