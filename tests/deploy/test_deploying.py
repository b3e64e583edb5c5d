"""Deploying as it is typed, against strict servers: all or nothing, priced, and taken down again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.core.errors import TargetError
from headway.serving.deploy import client
from tests.deploy.bundles import small_bundle
from tests.servers import vertex_messages
from tests.servers.google_auth import GoogleAuthServer
from tests.servers.google_serving import ServingServer

GOLDEN = Path(__file__).parent / "golden"
IMAGE = "us-docker.pkg.dev/my-project/repo/leaves@sha256:" + "a" * 64
Type = Callable[..., Any]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServingServer]:
    vertex_messages.require()
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(client, "POLL_S", 0.01)
    tokens: set[str] = set()
    with GoogleAuthServer(tokens) as auth, ServingServer(tokens) as server:
        server.images.add(IMAGE)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(auth.service_account_file(tmp_path / "account.json")))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN", f"{server.url}/")
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM", f"{server.url}/")
        yield server


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return small_bundle(tmp_path / "bundle")


def words(to: str, *more: str) -> tuple[str, ...]:
    return ("--to", to, "--project", "my-project", "--image", IMAGE, *more)


@pytest.mark.parametrize("to", ["cloud-run", "vertex"])
def test_what_is_rendered_is_the_reviewed_one(headway: Type, bundle: Path, to: str) -> None:
    assert headway("deploy", bundle, *words(to, "--render", "out")).code == 0
    written = {path.name: path.read_text() for path in Path("out").iterdir()}
    golden = {path.name: path.read_text() for path in (GOLDEN / to).iterdir()}
    assert written == golden, f"if this is meant: write it to {GOLDEN / to}"


def test_it_says_what_it_would_do_and_cost_before_anybody_is_asked(headway: Type, bundle: Path) -> None:
    run = headway("deploy", bundle, "--to", "cloud-run", "--project", "my-project").out
    assert "us-central1-docker.pkg.dev/my-project/headway/my-leaves:" in run
    assert "nothing while there are no requests" in run
    assert "headway deploy --down --to cloud-run" in run
    vertex = headway("deploy", bundle, "--to", "vertex", "--project", "my-project").out
    assert "per machine-hour" in vertex
    assert "a month" in vertex
    told = json.loads(headway("deploy", bundle, "--to", "vertex", "--project", "my-project", "--json").out)
    assert told["price"]["idle_usd_per_hour"] == pytest.approx(0.19 * 1.15, rel=0.05)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--cpus", "3"), "--cpus 1, 2, 4, 6 or 8"),
        (("--memory", "16GiB"), "--memory 8GiB"),
        (("--accelerator", "T4"), "--to vertex"),
        (("--accelerator", "L4"), "--cpus 4 --memory 16GiB"),
        (("--token", "env:NAME"), "gcp-sm://NAME"),
        (("--name", "My_Leaves"), "--name my-leaves"),
        (("--region", "mars"), "--region us-central1"),
        (("--min", "4"), "--min 0 --max 3"),
        (("--memory", "many"), "--memory"),
        (("--submit",), "-y"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_type(
    headway: Type, bundle: Path, more: tuple[str, ...], says: str
) -> None:
    said = headway("deploy", bundle, *words("cloud-run", *more))
    assert said.code == 2
    assert says in said.err


def test_vertex_ais_own_limits_are_said(headway: Type, bundle: Path) -> None:
    said = headway(
        "deploy", bundle, *words("vertex", "--min", "0", "--public", "--token", "gcp-sm://t", "--machine", "x")
    )
    assert said.code == 2
    assert said.err.count("fix:") == 4, "all problems at once"


def test_a_service_is_made_replaced_and_taken_down(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    first = headway("deploy", bundle, *words("cloud-run", "--public", "--token", "gcp-sm://serving", "--submit", "-y"))
    assert first.code == 0, first.err
    assert "is serving at https://my-leaves-xyz.a.run.app" in first.out
    assert cloud.public == {"my-leaves"}
    container = cloud.services["my-leaves"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["/headway/bundle", "--token", "env:HEADWAY_TOKEN"]
    assert container["env"][0]["valueFrom"] == {"secretKeyRef": {"name": "serving", "key": "latest"}}
    again = headway("deploy", bundle, *words("cloud-run", "--max", "5", "--submit", "-y", "--json"))
    assert json.loads(again.out)["address"].startswith("https://")
    assert cloud.services["my-leaves"]["metadata"]["generation"] == 2
    down = headway("deploy", "--down", "--to", "cloud-run", "--project", "my-project", "--name", "my-leaves", "-y")
    assert (down.code, down.out.strip()) == (0, "removed service my-leaves")
    assert cloud.services == {}
    twice = headway("deploy", "--down", "--to", "cloud-run", "--project", "my-project", "--name", "my-leaves", "-y")
    assert (twice.code, "does not exist" in twice.out) == (0, True)


def test_a_service_that_does_not_start_is_not_left_there(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    cloud.images.clear()
    said = headway("deploy", bundle, *words("cloud-run", "--submit", "-y"))
    assert said.code == 1
    assert "not found" in said.err
    assert cloud.services == {}


def test_a_service_of_somebody_else_is_left_alone(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    headway("deploy", bundle, *words("cloud-run", "--submit", "-y"))
    cloud.services["my-leaves"]["metadata"]["labels"] = {}
    for said in (
        headway("deploy", bundle, *words("cloud-run", "--submit", "-y")),
        headway("deploy", bundle, *words("cloud-run", "--down", "-y")),
    ):
        assert (said.code, "another --name" in said.err) == (2, True)
    assert "my-leaves" in cloud.services


def test_who_may_not_is_told_which_role(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    cloud.forbidden = True
    assert "roles/run.admin" in headway("deploy", bundle, *words("cloud-run", "--submit", "-y")).err
    assert "roles/aiplatform.user" in headway("deploy", bundle, *words("vertex", "--submit", "-y")).err


def test_a_model_is_deployed_replaced_and_taken_down(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    first = headway("deploy", bundle, *words("vertex", "--accelerator", "T4:1", "--submit", "-y"))
    assert first.code == 0, first.err
    assert ":predict" in first.out
    assert "billed        " in first.out
    assert headway("deploy", bundle, *words("vertex", "--submit", "-y")).code == 0
    (endpoint,) = cloud.endpoints.values()
    assert len(endpoint["deployedModels"]) == 1, "the model before it holds no machines any more"
    assert len(cloud.models) == 2
    down = headway(
        "deploy", "--down", "--to", "vertex", "--project", "my-project", "--name", "my-leaves", "-y", "--json"
    )
    assert len(json.loads(down.out)["removed"]) == 3
    assert (cloud.endpoints, cloud.models) == ({}, {})


@pytest.mark.parametrize("fault", ["no room", "does not start"])
def test_a_model_that_cannot_be_deployed_leaves_nothing(
    headway: Type,
    bundle: Path,
    cloud: ServingServer,
    fault: str,
) -> None:
    cloud.full = fault == "no room"
    cloud.images = set() if fault == "does not start" else cloud.images
    said = headway("deploy", bundle, *words("vertex", "--submit", "-y"))
    assert said.code == 1
    assert "Vertex AI: M" in said.err
    assert (cloud.endpoints, cloud.models) == ({}, {})


def test_a_removal_that_fails_too_is_said_and_does_not_hide_why_it_was_needed(
    headway: Type, bundle: Path, cloud: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.full = True
    ask = client.Cloud.call

    def no_deleting(self: client.Cloud, method: str, url: str, body: Any = None) -> dict[str, Any]:
        if method == "DELETE":
            raise TargetError("the network is down")
        return ask(self, method, url, body)

    monkeypatch.setattr(client.Cloud, "call", no_deleting)
    said = headway("deploy", bundle, *words("vertex", "--submit", "-y"))
    assert said.code == 1
    assert "Vertex AI: M" in said.err
    assert "may be billed (the network is down" in said.err
    assert "headway deploy --down --to vertex" in said.err


def test_what_stays_after_all_is_named_and_is_code_5(headway: Type, bundle: Path, cloud: ServingServer) -> None:
    headway("deploy", bundle, *words("vertex", "--submit", "-y"))
    cloud.stuck = True
    down = headway("deploy", "--down", "--to", "vertex", "--project", "my-project", "--name", "my-leaves", "-y")
    assert (down.code, "not removed" in down.err) == (5, True)


def test_a_bundle_in_a_bucket_is_read_at_the_start(tmp_path: Path) -> None:
    from headway.serving.deploy import cloud_run, vertex
    from headway.serving.deploy.model import Deployment

    there = "gs://bucket/models/leaves"
    run = Deployment(to="cloud-run", name="leaves", project="my-project", region="us-central1", recipe="c", model=there)
    container = cloud_run.service(run)["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "AIP_STORAGE_URI", "value": there} in container["env"]
    assert "args" not in container
    assert vertex.model(run)["model"]["artifactUri"] == there
    assert yaml.safe_load(yaml.safe_dump(cloud_run.service(run))) == cloud_run.service(run)
