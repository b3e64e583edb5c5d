"""gcloud itself takes the rendered service, reads it with its own message types, and sends it as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploying import GOLDEN, IMAGE
from tests.servers.google_serving import ServingServer
from tests.servers.loopback import Request

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]


class GcloudsServer(ServingServer):
    """What gcloud asks besides: the project's number; and it wants a service's state in its own words."""

    def _answered(self, request: Request) -> Any:
        if request.path == "/v1/projects/my-project" and request.method == "GET":
            return {"projectId": "my-project", "projectNumber": "123456", "lifecycleState": "ACTIVE"}
        return super()._answered(request)


def test_gcloud_replaces_a_service_by_what_is_rendered(tmp_path: Path) -> None:
    rendered = GOLDEN / "cloud-run" / "service.yaml"
    (tmp_path / "token").write_text("a-token")
    with GcloudsServer({"a-token"}) as server:
        server.images.add(IMAGE)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
            # gcloud puts the region before the host's name: a proxy makes ours answer to any.
            "http_proxy": server.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN": "http://run.test/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": "http://projects.test/",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        }
        words = ["gcloud", "run", "services", "replace", str(rendered), "--project=my-project", "--region=us-central1"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + str([(r.method, r.path) for r in server.requests])
        sent = server.services["my-leaves"]["spec"]
    assert sent == yaml.safe_load(rendered.read_text())["spec"]
