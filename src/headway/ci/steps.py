"""What a pipeline's steps do, in Python rather than in a shell: identity, training, comment, summary."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import BadInput, HeadwayError

if TYPE_CHECKING:
    from headway.launcher import Launched

SHOWN = 20  # scores in a summary


def identity(env: Mapping[str, str]) -> str:
    """The path of a file by which Google's libraries exchange GitLab's token for their own. It holds no key."""
    missing = [name for name in ("GOOGLE_PROVIDER", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_TOKEN") if not env.get(name)]
    if missing:
        raise BadInput(f"the pipeline has no variable {missing[0]}", fix="Settings > CI/CD > Variables")
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
    """The plan on a merge request of GitLab; said in words what was done. Nothing where no token was given for it."""
    needed = ("HEADWAY_COMMENT_TOKEN", "CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID")
    if not all(env.get(name) for name in needed):
        return "not commented: HEADWAY_COMMENT_TOKEN is not set"
    from urllib.request import Request, urlopen

    url = f"{env['CI_API_V4_URL']}/projects/{env['CI_PROJECT_ID']}/merge_requests/{env['CI_MERGE_REQUEST_IID']}/notes"
    body = json.dumps({"body": f"### What merging and training would do\n```\n{Path(path).read_text()}\n```"}).encode()
    headers = {"Content-Type": "application/json", "PRIVATE-TOKEN": env["HEADWAY_COMMENT_TOKEN"]}
    try:
        with urlopen(Request(url, data=body, headers=headers, method="POST"), timeout=30) as answer:
            answer.read(1024)
    except OSError as error:
        return f"not commented: {error}"
    return "commented"


def summary(hold: Launched) -> str:
    """How a run went, in Markdown: state, cost, scores; and why, where it failed."""
    from headway.explain.why import why
    from headway.spent import spent_s, spent_usd

    status, folder = hold.target.status(hold.handle), hold.folder
    seconds = spent_s(folder)
    plan = folder.plan()
    cost = spent_usd(plan, seconds)
    rows = [("state", status.state.value), ("took", f"{seconds / 3600:.2f} h"), ("folder", f"`{folder.url}`")]
    if cost is not None:
        rows.append(("cost", f"${cost:.2f}"))
    if plan.price.get("expected_usd") is not None:
        rows.append(("expected", f"${plan.price['expected_usd']:.2f} ({plan.price.get('basis')})"))
    rows += [(name, f"{value:.4g}") for name, value in _scores(hold).items()]
    table = ["| | |", "| --- | --- |", *(f"| {name} | {_cell(value)} |" for name, value in rows)]
    lines = [f"### {hold.run}", "", *table]
    if status.state.value in ("failed", "lost"):
        found = why(hold, status)
        told = [found.cause, found.evidence, f"fix: {found.fix}"] if found.name else list(found.lines)
        lines += ["", "```", *(line.replace("```", "'''") for line in told), "```"]
    return "\n".join(lines)


def _scores(hold: Launched) -> dict[str, float]:
    """Of the report, or else of the last validation."""
    try:
        report: dict[str, Any] = hold.folder.read_json("report.json") or {}
    except HeadwayError:
        report = {}
    found: dict[str, Any] = report.get("metrics") or next(
        (event for event in reversed(hold.folder.events()) if event.get("kind") == "score"), {}
    )
    skipped = ("attempt", "step", "rank", "spent_s", "epoch")
    numbers = {str(k): float(v) for k, v in found.items() if isinstance(v, int | float) and k not in skipped}
    return dict(list(numbers.items())[:SHOWN])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
