"""A receipt for a rented machine: true when the provider's CLI is logged out, lies, lags or refuses.

`down` is run for every machine on record; an empty `list` is believed only if that command has shown the machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway import cli
from headway.core.errors import RunBusy, TargetError
from headway.core.types import Receipt, State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.rundir import teardown
from headway.spec import TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.ssh.options import Options
from headway.targets.ssh.rental import REQUESTED, Records, fill_placeholders
from headway.targets.ssh.target import SshTarget
from tests.contract.plays import plan_play, write_project
from tests.targets.test_ssh_rented import Cloud, client, guardians, target_of
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def cloud(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("headway.targets.ssh.provider.LISTED_WITHIN_S", 0.5)
    monkeypatch.setattr("headway.targets.ssh.provider.RETRY_S", 0.5)
    monkeypatch.chdir(tmp_path)
    yield Cloud(tmp_path / "cloud", server)
    for rental in Records().all():
        unguarded(rental.url)
    wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")

    def made(entry: dict[str, Any], play: FakeBehaviour | None = None, **more: Any) -> Plan:
        entries = {"vm": TargetEntry(kind="ssh", options=entry)}
        outputs = str(tmp_path / "runs")
        return plan_play(project, play or FakeBehaviour(), on="vm", outputs=outputs, targets=entries, **more)

    return made


def unguarded(url: str) -> None:
    for pid in guardians(url):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: guardians(url) == [], "nobody guards it")


@pytest.fixture
def rented(plan_of: Callable[..., Plan], tmp_path: Path) -> Callable[..., tuple[RunHandle, list[str]]]:
    """A run on a rented machine that has not ended, which nobody but the test takes down; and what was said."""

    def made(entry: dict[str, Any]) -> tuple[RunHandle, list[str]]:
        said: list[str] = []
        waits = (f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done",)
        plan = plan_of(entry, setup=waits)
        hold = lifecycle.launch(plan, name="mine", detach=True, target=target_of(plan, said))
        unguarded(hold.url)
        return hold, said

    return made


def given_back(cloud: Cloud) -> int:
    return cloud.calls.count("down mine vm-mine")


def assert_kept(hold: RunHandle, receipt: Receipt) -> None:
    assert receipt.left == ("machine vm-mine",)
    assert not any("vm-mine" in name for name in receipt.removed)
    (record,) = Records().all()
    assert record.ids == ("vm-mine",)
    assert hold.folder.read_json("teardown.json")["left"] == ["machine vm-mine"]


def test_a_provider_that_is_logged_out_inside_a_pipe_has_not_said_that_the_machine_is_gone(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    hold, said = rented(cloud.entry())
    out = cloud.turns("logged-out")
    assert cli.main(["down", hold.url]) == 5
    told = capsys.readouterr()
    assert "LEFT BEHIND: machine vm-mine" in told.out
    assert "not logged in" in told.err
    assert given_back(cloud) == 1
    assert cloud.machines == ["vm-mine"]
    assert_kept(hold, Receipt(run="mine", left=("machine vm-mine",)))
    assert cli.main(["gc", "-y"]) == 5
    told = capsys.readouterr()
    assert "mine" in told.out
    assert "nothing is left behind" not in told.out
    out.unlink()
    assert cli.main(["gc", "-y"]) == 0
    assert "removed" in capsys.readouterr().out
    assert cloud.machines == []
    assert Records().all() == []
    assert said


def test_a_machine_on_record_is_shown_by_gc_when_its_run_has_finished_and_its_folder_is_gone(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import shutil

    hold, _ = rented(cloud.entry())
    cloud.turns("refusing", "2")
    (tmp_path / "go").touch()
    assert hold.wait().exit_code == 5
    assert cli.main(["gc", "--dry-run"]) == 5
    assert "nothing is left behind" not in capsys.readouterr().out
    shutil.rmtree(tmp_path / "runs" / "mine")
    assert cli.main(["gc", "--dry-run"]) == 5
    assert "its run folder no longer exists" in capsys.readouterr().out
    cloud.turns("refusing", "0")
    assert cli.main(["gc", "-y"]) == 0
    assert cloud.machines == []


def test_an_empty_list_does_not_keep_down_from_being_run(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, _ = rented(cloud.entry())
    cloud.turns("lying")
    receipt = hold.down()
    assert given_back(cloud) == 1
    assert cloud.machines == []
    assert receipt.left == receipt.unverified == ()
    assert "machine vm-mine" in receipt.removed


def test_outputs_are_fetched_though_an_empty_list_says_that_the_machine_is_gone(
    cloud: Cloud, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of(cloud.entry(), FakeBehaviour(lines=("hello",)))
    cloud.turns("lying")
    hold = lifecycle.launch(plan, name="mine", target=target_of(plan, []))
    assert [line.text for line in hold.logs(rank=0)] == ["hello"]
    assert hold.outcome().status.state is State.FINISHED
    assert cloud.machines == []


def test_a_list_that_has_never_shown_the_machine_is_said_at_launch_and_never_believed(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    cloud.entry()
    cloud.turns("lying")
    hold, said = rented(cloud.entry())
    assert any("`list` does not show vm-mine, which `up` has just made: receipts cannot rely" in text for text in said)
    cloud.turns("refusing", "1")
    assert_kept(hold, hold.down())
    assert any("service unavailable" in text and "may still be billed" in text for text in said)
    receipt = hold.down()
    assert receipt.left == ()
    assert receipt.unverified == ("machine vm-mine",)
    assert cloud.machines == []
    assert Records().all() == []


def test_a_list_that_lags_behind_up_is_asked_until_it_shows_the_machine(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    cloud.entry()
    cloud.turns("lagging", "2")
    hold, said = rented(cloud.entry())
    (record,) = Records().all()
    assert record.listed == ("vm-mine",)
    assert not any("does not show" in text for text in said)
    assert hold.down().unverified == ()


def test_a_down_that_fails_once_keeps_the_record_until_it_succeeds(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, said = rented(cloud.entry())
    cloud.turns("refusing", "1")
    assert_kept(hold, hold.down())
    assert any("fix: run it to see" in text and "headway gc -f FILE --on vm" in text for text in said)
    receipt = hold.down()
    assert (receipt.left, given_back(cloud)) == ((), 2)
    assert Records().all() == []


def test_a_down_that_fails_as_the_machine_is_gone_is_settled_by_a_list_that_has_shown_it(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, said = rented(cloud.entry())
    cloud.turns("strict")
    (cloud.folder / "machines/vm-mine").unlink()
    receipt = hold.down()
    assert given_back(cloud) == 1
    assert receipt.left == receipt.unverified == ()
    assert "machine vm-mine" not in receipt.removed, "nobody here removed it"
    assert any("counts as gone, as `list` no longer shows it" in text for text in said)
    assert Records().all() == []


@pytest.mark.parametrize("hides", ["none", "|| true"])
def test_a_down_that_fails_is_not_settled_without_a_list_that_can_be_believed(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]], hides: str
) -> None:
    entry = cloud.entry()
    hold, said = rented({**entry, "list": None if hides == "none" else f"{entry['list']} || true"})
    cloud.turns("strict")
    (cloud.folder / "machines/vm-mine").unlink()
    assert_kept(hold, hold.down())
    assert any("no such machine" in text and "rm -r" in text for text in said)
    command = re.search(r"rm -r \S+", "\n".join(said))
    assert command is not None
    subprocess.run(command[0].split(), check=True)
    assert Records().all() == [], "what it says to type works"


def test_a_down_that_succeeded_and_left_the_machine_there_does_not_excuse_a_later_one_that_fails(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    entry = cloud.entry(gone=0.5)
    hidden = f"{entry['list']} || true"
    hold, said = rented({**entry, "list": hidden, "down": "echo {id} is busy"})
    assert_kept(hold, hold.down())
    cloud.turns("logged-out")
    real = SshTarget(Options(**{**entry, "list": hidden}), log=said.append)
    assert real.down(hold.target_handle).left == ("machine vm-mine",)
    (cloud.folder / "logged-out").unlink()
    assert real.down(hold.target_handle).left == ()
    assert cloud.machines == []


def test_without_list_a_receipt_says_that_nobody_was_asked(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    hold, _ = rented(cloud.entry(list=None))
    assert cli.main(["down", hold.url]) == 0
    told = capsys.readouterr().out
    assert "could not verify the removal of: machine vm-mine" in told
    assert "verified: " not in told
    assert cloud.machines == []
    assert Records().all() == []
    cloud.turns("strict")
    assert hold.down().left == (), "a second `down` that fails: the first has succeeded"


def test_a_record_of_an_older_version_is_read_and_its_list_not_believed(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, _ = rented(cloud.entry())
    path = Records().place(hold.url) / "rental.json"
    new = ("options", "found", "listed", "listed_by", "returned")
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in new}))
    cloud.turns("lying")
    cloud.turns("refusing", "1")
    assert_kept(hold, hold.down())
    assert hold.down().unverified == ("machine vm-mine",)


def test_a_false_receipt_of_an_older_version_is_corrected(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, _ = rented(cloud.entry())
    false = Receipt(run="mine", created=("machine vm-mine",), removed=("machine vm-mine",))
    teardown.write(hold.folder, false)
    Records().delete(hold.url)
    cloud.turns("logged-out")
    assert_kept(hold, hold.down())
    (cloud.folder / "logged-out").unlink()
    assert hold.down().left == ()
    assert cloud.machines == []


def test_a_list_that_shows_the_machine_before_down_is_believed_afterwards(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, _ = rented(cloud.entry())
    path = Records().place(hold.url) / "rental.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "listed": [], "listed_by": ""}))
    assert hold.down().unverified == ()


def test_another_machine_that_takes_the_run_down_knows_what_was_rented_and_shown(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hold, _ = rented(cloud.entry())
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "another-home"))
    cloud.turns("strict")
    (cloud.folder / "machines/vm-mine").unlink()
    elsewhere = lifecycle.open_run(hold.url)
    assert elsewhere.down().left == (), "the list has shown it, and shows it no more"
    assert given_back(cloud) == 1


def test_a_machine_that_is_on_record_is_not_overwritten_by_a_second_start(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, _ = rented(cloud.entry())
    cloud.turns("refusing", "2")
    hold.down()
    with pytest.raises(RunBusy, match="vm-mine") as caught:
        lifecycle.resume(hold.url, target=hold.target)
    assert caught.value.problem.fix == f"headway down {hold.url}"
    assert hold.down().left == ()
    assert cloud.machines == []


# ── killed between `up` and the record ──


def killed_in_up(cloud: Cloud, plan: Plan, tmp_path: Path) -> str:
    """A client that is killed while `up` is at work, and nobody guards the run."""
    process = client(plan, tmp_path, "mine")
    wait_until(lambda: (tmp_path / "gate.waits").exists(), "up is at work")
    (record,) = Records().all()
    unguarded(record.url)
    process.kill()
    process.wait()
    assert record.state == REQUESTED
    return record.url


def gated(entry: dict[str, Any], tmp_path: Path, up: str) -> dict[str, Any]:
    gate = tmp_path / "gate"
    return {**entry, "up": up.replace("GATE", f"touch {gate}.waits; while [ ! -e {gate} ]; do sleep 0.05; done")}


@pytest.mark.parametrize("pid", ["recorded", "not recorded"])
def test_an_up_that_outlives_a_killed_client_is_waited_for_and_what_it_names_given_back(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path, pid: str
) -> None:
    entry = cloud.entry()
    plan = plan_of(gated(entry, tmp_path, f"GATE; {entry['up']}"))
    url = killed_in_up(cloud, plan, tmp_path)
    if pid == "not recorded":  # killed between the start of `up` and its record
        path = Records().place(url) / "rental.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 0, "started": ""}))
    began = time.monotonic()
    opener = subprocess.Popen(["sh", "-c", f"sleep 1.5; touch {tmp_path}/gate"])
    receipt = lifecycle.down(url)
    opener.wait()
    assert time.monotonic() - began > 1
    assert "machine vm-mine" in receipt.removed
    assert receipt.left == ()
    assert cloud.machines == []


def test_an_id_that_up_prints_before_the_address_is_enough_to_give_the_machine_back(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    entry = cloud.entry(list=None)
    up = f"{cloud.provider} up {{run}}; echo id=vm-{{run}}; echo no address >&2; exit 4"
    plan = plan_of({**entry, "up": up})
    with pytest.raises(TargetError, match="no address"):
        lifecycle.launch(plan, name="mine", target=target_of(plan, []))
    assert given_back(cloud) >= 1
    assert cloud.machines == []
    assert Records().all() == []


@pytest.mark.parametrize("lying", [False, True])
def test_a_machine_that_up_never_named_is_given_back_by_list_or_kept_on_record(
    cloud: Cloud, plan_of: Callable[..., Plan], lying: bool
) -> None:
    entry, said = cloud.entry(), list[str]()
    plan = plan_of({**entry, "up": f"{cloud.provider} up {{run}}; echo it broke >&2; exit 4"})
    if lying:
        cloud.turns("lying")
    with pytest.raises(TargetError, match="it broke"):
        lifecycle.launch(plan, name="mine", target=target_of(plan, said), say=said.append)
    if not lying:
        assert cloud.machines == []
        assert Records().all() == []
        return
    assert cloud.machines == ["vm-mine"]
    (record,) = Records().all()
    unguarded(record.url)
    assert any("it is unknown whether `up` created one" in text and "rm -r" in text for text in said)
    assert any("left behind: machine that `up` may have made for mine" in text for text in said)
    (cloud.folder / "lying").unlink()
    assert lifecycle.down(record.url).left == ()
    assert cloud.machines == []


def test_a_client_killed_before_up_was_begun_leaves_nothing_to_give_back(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = plan_of(cloud.entry())
    from headway.targets.ssh.rental import ProvisionedMachine

    url = str(tmp_path / "runs" / "mine")
    Records().write(ProvisionedMachine(run="mine", url=url, target="vm", options=dict(plan.options)))
    (found,) = SshTarget(Options(**plan.options)).list_runs()
    receipt = SshTarget(Options(**plan.options)).down(found)
    assert (receipt.created, receipt.left) == ((), ())
    assert Records().all() == []


def test_a_down_by_run_alone_needs_no_id(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry(list=None, down=f"{cloud.provider} down {{run}} vm-{{run}}")
    plan = plan_of({**entry, "up": f"{cloud.provider} up {{run}}; exit 4"})
    with pytest.raises(TargetError, match="ended with 4"):
        lifecycle.launch(plan, name="mine", target=target_of(plan, []))
    assert cloud.machines == []
    assert Records().all() == []


# ── by itself: the guardian ──


def test_the_guardian_tries_again_until_down_has_succeeded(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    entry = cloud.entry()
    up = f"{cloud.provider} up {{run}}; GATE; {entry['up']}"
    plan = plan_of(gated(entry, tmp_path, up))
    process = client(plan, tmp_path, "mine")
    wait_until(lambda: (tmp_path / "gate.waits").exists(), "up is at work")
    (record,) = Records().all()
    cloud.turns("refusing", "1")
    cloud.turns("lying")
    process.kill()
    process.wait()
    (tmp_path / "gate").touch()
    wait_until(lambda: given_back(cloud) == 1, "tried once")
    assert cloud.machines == ["vm-mine"]
    wait_until(lambda: cloud.machines == [] and Records().all() == [], "and again")
    wait_until(lambda: guardians(record.url) == [], "nothing is left to guard")


# ── the shell, and what the documentation recommends ──


def test_every_part_of_a_pipe_counts(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry()
    plan = plan_of({**entry, "up": f"{entry['up']} | cat; (echo quota >&2; exit 7) | cat"})
    with pytest.raises(TargetError, match="`up` ended with 7: quota"):
        lifecycle.launch(plan, name="mine", target=target_of(plan, []))
    assert cloud.machines == []


def test_a_grep_that_finds_nothing_is_no_answer_and_the_fix_says_so(
    cloud: Cloud, rented: Callable[..., tuple[RunHandle, list[str]]]
) -> None:
    hold, said = rented(cloud.entry(list=f"{cloud.provider} list | grep {{run}} | sort"))
    assert hold.down().left == ("machine vm-mine",)
    assert cloud.machines == []
    assert any("a grep that finds nothing ends with 1: awk" in text for text in said)
    mended = SshTarget(Options(**cloud.entry()), log=said.append)
    assert mended.down(hold.target_handle).left == ()


def test_a_list_that_hides_its_failures_is_noted_in_the_plan(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry()
    assert not any("hides its failures" in note for note in plan_of(entry).notes)
    for end in ("|| true", "|| :", "; true", "; exit 0"):
        notes = plan_of({**entry, "list": f"{entry['list']} {end}"}).notes
        assert any("hides its failures: an empty answer is not trusted" in note for note in notes), end


IBMCLOUD = """#!/bin/sh
[ -e "$CLOUD/logged-out" ] && { echo "FAILED: not logged in" >&2; exit 1; }
echo "id      hostname   domain       cpu  memory  public_ip  private_ip  datacenter  action"
[ -e "$CLOUD/there" ] && echo "129930  mine       example.com  8    61440   10.1.2.3   10.0.0.1    dal10"
[ -e "$CLOUD/there" ] && echo "129931  mine-2     example.com  8    61440   10.1.2.4   10.0.0.2    dal10"
exit 0
"""


def test_the_documented_list_shows_the_machine_alone_and_fails_when_logged_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.targets.ssh import provider

    (tmp_path / "ibmcloud").write_text(IBMCLOUD)
    (tmp_path / "ibmcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(tmp_path))
    block = re.search(r"```yaml\n(.*?)```", (DOCS / "targets-ssh.md").read_text(), re.DOTALL)
    assert block is not None
    command = yaml.safe_load(block[1])["targets"]["cloud"]["list"]
    assert not provider.hides_failures(command)

    def asked() -> tuple[int, str]:
        words = [*provider.shell_command(), fill_placeholders(command, run="mine")]
        done = subprocess.run(words, capture_output=True, text=True)
        return done.returncode, done.stdout.strip()

    (tmp_path / "there").touch()
    assert asked() == (0, "129930")
    (tmp_path / "there").unlink()
    assert asked() == (0, "")
    (tmp_path / "logged-out").touch()
    assert asked() == (1, "")


def test_no_page_and_no_example_recommends_a_list_that_hides_its_failures() -> None:
    from headway.targets.ssh import provider

    pages = [*DOCS.rglob("*.md"), *(DOCS.parent / "examples").rglob("*.yaml")]
    commands = [line for page in pages for line in re.findall(r"^\s*list: (.*)$", page.read_text(), re.MULTILINE)]
    assert commands
    assert [command for command in commands if provider.hides_failures(command) or "grep" in command] == []
