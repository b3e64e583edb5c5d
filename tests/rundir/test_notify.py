"""People are told how a run ended, once, and whatever goes wrong in telling them does the run no harm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headway.rundir.notify import Notification, post_webhook, run_command
from tests.cli.conftest import Headway
from tests.cli.conftest import headway as headway

NOTICE = Notification(
    event="failed", run="r1", job="j", target="gke", url="gs://b/r1", reason="rank 0 exited with 1", seconds=7200.0,
    usd=1.46, next="headway why r1",
)  # fmt: skip


class Slack(HTTPServer):
    """As strict as Slack: JSON with a text, or 400."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, object]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/T000/B000/canary-7c1d-hook"


class _Handler(BaseHTTPRequestHandler):
    server: Slack

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = json.loads(body)
        good = self.headers["Content-Type"] == "application/json" and isinstance(message.get("text"), str)
        self.server.seen.append(message)
        self.send_response(self.server.status if good else 400)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def slack() -> Iterator[Slack]:
    server = Slack()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_notice_reads_like_a_message(slack: Slack) -> None:
    said: list[str] = []
    post_webhook(slack.url, NOTICE, said.append)
    (message,) = slack.seen
    assert message["text"] == "❌ r1 on gke failed: rank 0 exited with 1 (2.0 h, $1.46)\nnext: headway why r1"
    assert message["headway"]["usd"] == 1.46  # type: ignore[index]
    assert said == []


@pytest.mark.parametrize("trouble", ["refused", "down", "nonsense"])
def test_a_webhook_in_trouble_is_said_without_its_address(slack: Slack, trouble: str) -> None:
    slack.status = 500
    url = {"refused": slack.url, "down": "http://127.0.0.1:9/canary-7c1d-hook", "nonsense": "canary-7c1d-hook"}[trouble]
    said: list[str] = []
    post_webhook(url, NOTICE, said.append)
    assert "rejected the notification" in said[0]
    assert "canary" not in said[0]


def test_a_command_is_told_by_its_environment_and_by_nothing_else(tmp_path: Path) -> None:
    hostile = Notification(
        event="failed", run="r1", job="j", target="t", url="u", reason="$(touch hacked); `id`", seconds=1.0
    )
    said: list[str] = []
    run_command(f'printf "%s|%s" "$HEADWAY_EVENT" "$HEADWAY_REASON" > {tmp_path}/out', hostile, said.append)
    assert (tmp_path / "out").read_text() == "failed|$(touch hacked); `id`"
    assert not Path("hacked").exists()
    assert said == []


def test_a_command_that_fails_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    run_command("exit 3", NOTICE, said.append)
    assert said == ["notify.command ended with 3"]


def test_a_real_run_announces_its_end_by_both_ways_and_hides_the_address(
    headway: Headway, slack: Slack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_URL", slack.url)
    Path("train.py").write_text("import os; print(os.environ.get('HEADWAY_WEBHOOK')); raise SystemExit(4)\n")
    command = f"echo $HEADWAY_EVENT $HEADWAY_RUN >> {tmp_path}/told"
    Path("headway.yaml").write_text(
        f"name: job\nscript: train.py\nretries: 0\nnotify: {{webhook: env:SLACK_URL, command: '{command}'}}\n"
    )
    assert headway("run", "--name", "told").code == 1
    assert [message["headway"]["event"] for message in slack.seen] == ["failed"]  # type: ignore[index]
    headway("status", "told")
    assert (tmp_path / "told").read_text() == "failed told\n"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"canary-7c1d-hook" not in path.read_bytes(), path
