"""CI pipelines for GitHub and GitLab, and the steps that they run.

Every action is pinned to a commit; untrusted values are passed as variables.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import BadInput, HeadwayError

if TYPE_CHECKING:
    from headway.launcher.lifecycle import RunHandle


# Steps of a pipeline, in Python instead of shell


SHOWN = 20  # scores shown in a summary


def identity(env: Mapping[str, str]) -> str:
    """Write a credentials file for workload identity federation with GitLab's token; return its path.

    It holds no key.
    """
    missing = [name for name in ("GOOGLE_PROVIDER", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_TOKEN") if not env.get(name)]
    if missing:
        raise BadInput(f"the CI variable {missing[0]} is not set", fix="Settings > CI/CD > Variables")
    folder = Path(tempfile.mkdtemp(prefix="headway-identity-"))
    token = folder / "token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(env["GOOGLE_TOKEN"])
    account = env["GOOGLE_SERVICE_ACCOUNT"]
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    config = {
        "type": "external_account",
        "audience": f"//iam.googleapis.com/{env['GOOGLE_PROVIDER']}",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": str(token)},
        "service_account_impersonation_url": url,
    }
    path = folder / "credentials.json"
    path.write_text(json.dumps(config))
    return str(path)


def comment(path: str, env: Mapping[str, str]) -> str:
    """Post the plan as a comment on a GitLab merge request; return what was done. Does nothing without a token."""
    needed = ("HEADWAY_COMMENT_TOKEN", "CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID")
    if not all(env.get(name) for name in needed):
        return "not commented: HEADWAY_COMMENT_TOKEN is not set"
    from headway.core import http

    url = f"{env['CI_API_V4_URL']}/projects/{env['CI_PROJECT_ID']}/merge_requests/{env['CI_MERGE_REQUEST_IID']}/notes"
    message = {"body": f"### Training plan\n```\n{Path(path).read_text()}\n```"}
    headers = {"PRIVATE-TOKEN": env["HEADWAY_COMMENT_TOKEN"]}
    try:
        http.Client().request("POST", url, json=message, headers=headers).raise_for_status()
    except HeadwayError as error:
        return f"not commented: {error.problem.what}"
    return "commented"


def summary(run: RunHandle) -> str:
    """Summarize a run in Markdown: state, cost, scores, and the diagnosis if it failed."""
    from headway.diagnose.diagnosis import diagnose_run
    from headway.rundir.spending import Spending

    status, folder = run.current_status(), run.folder
    plan = folder.plan()
    spent = Spending.of(folder, plan=plan)
    rows = [("state", status.state.value), ("took", f"{spent.seconds / 3600:.2f} h"), ("folder", f"`{folder.url}`")]
    if spent.usd is not None:
        rows.append(("cost", f"${spent.usd:.2f}"))
    if spent.expected_usd is not None:
        rows.append(("expected", f"${spent.expected_usd:.2f} ({plan.price.get('basis')})"))
    rows += [(name, f"{value:.4g}") for name, value in _scores(run).items()]
    table = ["| | |", "| --- | --- |", *(f"| {name} | {_cell(value)} |" for name, value in rows)]
    lines = [f"### {run.run}", "", *table]
    if status.state.value in ("failed", "lost"):
        found = diagnose_run(run, status)
        evidence = [found.cause, found.evidence, f"fix: {found.fix}"] if found.name else list(found.lines)
        lines += ["", "```", *(line.replace("```", "'''") for line in evidence), "```"]
    return "\n".join(lines)


def _scores(run: RunHandle) -> dict[str, float]:
    """Return the scores of the report, or else of the last validation."""
    try:
        report: dict[str, Any] = run.folder.read_json("report.json") or {}
    except HeadwayError:
        report = {}
    found: dict[str, Any] = report.get("metrics") or next(
        (event for event in reversed(run.folder.events()) if event.get("kind") == "score"), {}
    )
    skipped = ("attempt", "step", "rank", "spent_s", "epoch")
    numbers = {str(k): float(v) for k, v in found.items() if isinstance(v, int | float) and k not in skipped}
    return dict(list(numbers.items())[:SHOWN])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


CHECKOUT = "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683  # v4.2.2"
PYTHON = "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065  # v5.6.0"
GOOGLE = "google-github-actions/auth@ba79af03959ebeac9769e648f473a284504d9193  # v2.1.10"
FOLDER = ".headway"  # in the repository, with Headway's wheel: nothing is installed by name from an index


def github(*, wheel: str, on: str, branch: str = "main") -> str:
    return f"""\
# Written by `headway ci github`. Trains when a commit on {branch} says !train! or !train-NAME! (NAME.yaml),
# and comments a pull request with the plan. Settings, under Settings > Secrets and variables > Actions > Variables:
#   GOOGLE_PROVIDER         projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME
#   GOOGLE_SERVICE_ACCOUNT  headway-trainer@PROJECT.iam.gserviceaccount.com
# No key is stored anywhere: Google trusts this repository's own identity.
name: headway

on:
  push:
    branches: [{branch}]
  pull_request:

permissions: {{}}

jobs:
  plan:
    if: github.event_name == 'pull_request' && github.event.pull_request.head.repo.full_name == github.repository
    runs-on: ubuntu-latest
    timeout-minutes: 10
    concurrency:
      group: headway-plan-${{{{ github.event.pull_request.number }}}}
      cancel-in-progress: true
    permissions:
      contents: read
      pull-requests: write
    steps:
      - uses: {CHECKOUT}
        with:
          persist-credentials: false
      - uses: {PYTHON}
        with:
          python-version: "3.12"
      - run: pip install "{FOLDER}/{wheel}"
      - name: Plan
        env:
          TARGET: {on}
        run: |
          headway plan --on "$TARGET" > plan.txt
          {{ echo "### Training plan"; echo '```'; cat plan.txt; echo '```'; }} > plan.md
      - name: Comment
        env:
          GH_TOKEN: ${{{{ github.token }}}}
          NUMBER: ${{{{ github.event.pull_request.number }}}}
        run: gh pr comment "$NUMBER" --body-file plan.md --edit-last --create-if-none

  trigger:
    if: github.event_name == 'push' && contains(github.event.head_commit.message, '!train')
    runs-on: ubuntu-latest
    timeout-minutes: 5
    permissions:
      contents: read
    outputs:
      jobs: ${{{{ steps.asked.outputs.jobs }}}}
    steps:
      - uses: {CHECKOUT}
        with:
          persist-credentials: false
      - id: asked
        env:
          HEADWAY_MESSAGE: ${{{{ github.event.head_commit.message }}}}
          PYTHONPATH: {FOLDER}/{wheel}
        run: python3 -m headway.ci.trigger >> "$GITHUB_OUTPUT"

  train:
    needs: trigger
    if: needs.trigger.outputs.jobs != '[]'
    runs-on: ubuntu-latest
    timeout-minutes: 350
    strategy:
      fail-fast: false
      max-parallel: 2
      matrix:
        job: ${{{{ fromJSON(needs.trigger.outputs.jobs) }}}}
    concurrency:
      group: headway-train-${{{{ matrix.job }}}}
      cancel-in-progress: false
    permissions:
      contents: read
      id-token: write
    env:
      JOB: ${{{{ matrix.job }}}}
      RUN: ci-${{{{ github.run_id }}}}-${{{{ strategy.job-index }}}}
      TARGET: {on}
    steps:
      - uses: {CHECKOUT}
        with:
          persist-credentials: false
      - uses: {PYTHON}
        with:
          python-version: "3.12"
      - uses: {GOOGLE}
        with:
          workload_identity_provider: ${{{{ vars.GOOGLE_PROVIDER }}}}
          service_account: ${{{{ vars.GOOGLE_SERVICE_ACCOUNT }}}}
      - run: pip install "{FOLDER}/{wheel}[gcp]"
      - name: Train
        run: headway run -f "$JOB" --on "$TARGET" --name "$RUN" --yes --no-rehearse
      - name: Summary
        if: always()
        run: headway ci summary "$RUN" >> "$GITHUB_STEP_SUMMARY"
"""


def gitlab(*, wheel: str, on: str) -> str:
    install = f'pip install --quiet "{FOLDER}/{wheel}[gcp]"'
    return f"""\
# Written by `headway ci gitlab`. Trains when a commit on the default branch says !train! or !train-NAME! (NAME.yaml),
# and plans every merge request. Variables of the project (Settings > CI/CD):
#   GOOGLE_PROVIDER         projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME
#   GOOGLE_SERVICE_ACCOUNT  headway-trainer@PROJECT.iam.gserviceaccount.com
#   HEADWAY_COMMENT_TOKEN   optional: a project token (api) with which the plan is commented on the merge request
# No key is stored anywhere: Google trusts this project's own identity.
stages: [plan, train]

variables:
  TARGET: {on}

plan:
  stage: plan
  image: python:3.12-slim
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
  script:
    - {install}
    - headway plan --on "$TARGET" | tee plan.txt
    - headway ci comment plan.txt
  artifacts:
    paths: [plan.txt]
    expire_in: 1 week

train:
  stage: train
  image: python:3.12-slim
  rules:
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH && $CI_COMMIT_MESSAGE =~ /!train(-[a-z0-9-]+)?!/
  resource_group: headway-train
  timeout: 12h
  id_tokens:
    GOOGLE_TOKEN:
      aud: https://iam.googleapis.com/$GOOGLE_PROVIDER
  script:
    - {install}
    - export GOOGLE_APPLICATION_CREDENTIALS="$(headway ci identity)"
    - headway ci train --on "$TARGET" --name "ci-$CI_PIPELINE_ID"
  after_script:
    - headway ci summary "ci-$CI_PIPELINE_ID" | tee report.md || true
  artifacts:
    when: always
    paths: [report.md]
"""
