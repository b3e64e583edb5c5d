"""Runs in images that Headway did not build: Google's own with a source package, and any other that is ready."""

from __future__ import annotations

import zipfile

import pytest

from headway.core.types import State
from headway.spec import Image, Secret
from headway.targets.fake import FakeBehaviour
from tests.targets.vertex.jobs import ready_image
from tests.targets.vertex.lab import Lab

pytestmark = pytest.mark.slow
SCRIPT = """
import os, sys, tiny, headway
print(os.environ["LOADED"], tiny.WORD, sys.prefix.rpartition("/")[2], os.environ["TOKEN"])
print("headway from", "image" if "/image/" in headway.__file__ else headway.__file__.split("/")[-3])
print(open("beside.txt").read())
"""


def requires_a_wheel(lab: Lab) -> None:
    """A project whose requirements are on no index: pip finds them beside the code."""
    wheel = lab.project / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("tiny.py", "WORD = 'installed'\n")
        content.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        content.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr("tiny-1.0.dist-info/RECORD", "")
    (lab.project / "requirements.txt").write_text("tiny\n")
    (lab.project / "beside.txt").write_text("the code's own folder")
    (lab.project / "play.py").write_text(SCRIPT)
    lab.cloud.secrets.secrets["my-project", "key"] = [b"a-secret-value"]


@pytest.mark.parametrize("mode", ["package", "container"])
def test_code_requirements_setup_and_secrets_are_there(lab: Lab, mode: str) -> None:
    requires_a_wheel(lab)
    image = Image() if mode == "package" else ready_image()
    hold = lab.start(
        FakeBehaviour(),
        options={"mode": mode},
        requirements="requirements.txt",
        setup=("export LOADED=cuda", "cd /"),
        env={"PIP_FIND_LINKS": "."},
        secrets={"TOKEN": Secret(ref="gcp-sm://key")},
        image=image,
    )
    outcome = hold.wait()
    said = [entry["jsonPayload"]["message"] for entry in lab.server.entries]
    assert outcome.status.state is State.FINISHED, "\n".join(said)
    home = "image" if mode == "package" else "headway"
    assert lab.texts(hold) == ["cuda installed image ***", f"headway from {home}", "the code's own folder"]
    assert outcome.receipt is not None
    assert outcome.receipt.left == ()
    if mode == "package":
        assert f"runs/code/{hold.folder.plan().requests[0].body['to'].rpartition('/')[2]}" in lab.cloud.stored()


def test_code_that_the_machines_cannot_read_is_named_in_their_last_words(lab: Lab) -> None:
    lab.server.restarts, lab.server.retries = 0, 0
    lab.server.full.add("us-east1")
    hold = lab.start(FakeBehaviour(), image=ready_image())
    bucket = lab.cloud.gcs.objects.buckets["bucket"]
    bucket.pop(next(key for key in lab.cloud.stored() if key.endswith(".tar.gz")))
    lab.server.full.clear()
    assert lab.ends(hold) is State.FAILED
    assert "may the job's service account read that bucket?" in hold.target.status(hold.target_handle).reason
