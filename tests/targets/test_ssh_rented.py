"""A machine rented for one run: recorded before it is asked for, its key pinned, given back in every ending.

The provider is a folder: `up` puts a file there, `list` shows it, `down` removes it. The machine is a real sshd.
What happens when the provider lies, lags or refuses is in test_ssh_rented_receipts.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob, TargetError
from headway.core.types import Receipt, State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import Budget, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.ssh import rental
from headway.targets.ssh.lifecycle import locked
from headway.targets.ssh.options import Options
from headway.targets.ssh.rental import Records, fill_placeholders, parse_machines
from headway.targets.ssh.target import SshTarget
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS, copied
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]


PROVIDER = """#!/bin/sh
# provider up RUN | list | down RUN ID. Files beside it change what it does; each call is noted.
cd "$(dirname "$0")"
echo "$@" >> calls
left() { [ -s "$1" ] && n=$(cat "$1") && [ "$n" -gt 0 ] && echo $((n - 1)) > "$1"; }  # that often still
if [ -e logged-out ]; then echo "not logged in: provider login" >&2; exit 1; fi
case $1 in
up) touch "machines/vm-$2" ;;
list) if [ -e lying ] || left lagging; then exit 0; fi; ls machines ;;
down)
    if left refusing; then echo "service unavailable" >&2; exit 1; fi
    if [ -e strict ] && [ ! -e "machines/$3" ]; then echo "no such machine: $3" >&2; exit 1; fi
    rm -f "machines/$3" ;;
esac
"""


class Cloud:
    """Machines, as files in a folder; every call is noted.

    Files in the folder change its answers: `logged-out` (every call fails), `lying` (`list` shows nothing and ends with
    0), `lagging` (the same, for that many calls), `refusing` (`down` fails that often), `strict` (`down` of a machine
    that is gone fails).
    """

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        folder.mkdir()
        self.provider = folder / "provider"
        self.provider.write_text(PROVIDER)
        self.provider.chmod(0o755)

    def entry(self, **more: Any) -> dict[str, Any]:
        (self.folder / "machines").mkdir(exist_ok=True)
        where = f"host=127.0.0.1 port={self.server.port} id=vm-{{run}}"
        known = {
            "up": f"{self.provider} up {{run}}; echo renting; echo {where}",
            "list": f"{self.provider} list | awk -v run={{run}} '$1 == \"vm-\" run'",
            "down": f"{self.provider} down {{run}} {{id}}",
            "identity": str(self.server.folder / "user_key"),
            "dir": str(self.folder / "there"),
            "python": sys.executable,
            "ready": 60.0,
        }
        return {**known, **more}

    def turns(self, what: str, text: str = "") -> Path:
        (self.folder / what).write_text(text)
        return self.folder / what

    @property
    def machines(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "machines").iterdir())

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def cloud(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    yield Cloud(tmp_path / "cloud", server)
    wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")

    def made(play: FakeBehaviour, entry: dict[str, Any], **more: Any) -> Plan:
        entries = {"vm": TargetEntry(kind="ssh", options=entry)}
        return plan_play(project, play, on="vm", outputs=str(tmp_path / "runs"), targets=entries, **more)

    return made


def target_of(plan: Plan, said: list[str]) -> SshTarget:
    return SshTarget(Options(**plan.options), log=said.append)


def guardians(url: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"headway.launcher.machine_watcher" in words and url.encode() in words:
            found.append(int(path.parent.name))
    return found


def prints(hold: RunHandle) -> bool:
    return any("waits" in line.text for line in hold.logs())


def test_a_machine_is_rented_its_key_pinned_and_given_back_when_the_run_has_ended(
    cloud: Cloud, plan_of: Callable[..., Plan]
) -> None:
    plan, said = plan_of(FakeBehaviour(lines=("hello",)), cloud.entry()), []
    hold = lifecycle.launch(plan, name="mine", target=target_of(plan, said))
    outcome = hold.outcome()
    assert outcome.status.state is State.FINISHED
    assert [line.text for line in hold.logs(rank=0)] == ["hello"]
    assert cloud.machines == []
    assert "down mine vm-mine" in cloud.calls
    assert cloud.calls[-1] == "list", "somebody looked again"
    assert any("host key pinned at first sight" in text and "SHA256:" in text for text in said)
    assert outcome.receipt is not None
    assert "machine vm-mine" in outcome.receipt.removed
    wait_until(lambda: guardians(hold.url) == [], "nothing is left to guard")
    assert Records().all() == []


def test_a_key_that_up_tells_is_pinned_before_the_first_connection_and_another_is_refused(
    cloud: Cloud, plan_of: Callable[..., Plan], server: Server
) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHWlMFnGKNeQWGTN+RNHUGm0eyBdONzBzXKH4KdQnNBn"
    entry = cloud.entry()
    where = f"host=127.0.0.1 port={server.port} hostkey={server.public_host_key} id=vm-"
    up = f"touch {cloud.folder}/machines/vm-{{run}}; echo '{where}'{{run}}"
    right = {**entry, "up": up}
    plan, said = plan_of(FakeBehaviour(), right), []
    assert lifecycle.launch(plan, name="right", target=target_of(plan, said)).outcome().status.state is State.FINISHED
    assert not any("first sight" in text for text in said)
    wrong = {**right, "up": right["up"].replace(server.public_host_key, other)}
    plan = plan_of(FakeBehaviour(), wrong)
    with pytest.raises(TargetError, match=r"different host key|not known"):
        lifecycle.launch(plan, name="wrong", target=target_of(plan, []))
    assert cloud.machines == [], "given back all the same"


def test_a_failed_up_is_given_back(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry()
    plan = plan_of(FakeBehaviour(), {**entry, "up": entry["up"] + "; echo no more machines >&2; exit 3"})
    with pytest.raises(TargetError, match="`up` ended with 3: no more machines"):
        lifecycle.launch(plan, name="unlucky", target=target_of(plan, []))
    assert cloud.machines == []
    assert "down unlucky vm-unlucky" in cloud.calls
    assert Records().all() == []


def test_a_machine_that_never_answers_is_given_back(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry(ready=0.5)
    plan = plan_of(FakeBehaviour(), {**entry, "up": entry["up"].replace(f"port={cloud.server.port}", "port=9")})
    with pytest.raises(TargetError, match="does not answer"):
        lifecycle.launch(plan, name="deaf", target=target_of(plan, []))
    assert cloud.machines == []


LAUNCH = """
import sys
from headway.launcher import lifecycle as launcher
from headway.planning import Plan
plan = Plan.from_json(open(sys.argv[1]).read())
hold = launcher.launch(plan, name=sys.argv[2], detach=sys.argv[3] == "detach")
print("handed over", flush=True)
"""


def client(plan: Plan, tmp_path: Path, name: str, how: str = "detach") -> subprocess.Popen[bytes]:
    (tmp_path / "plan.json").write_text(plan.to_json())
    words = [sys.executable, "-c", LAUNCH, str(tmp_path / "plan.json"), name, how]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_client_killed_while_up_is_at_work_leaves_no_machine(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    entry = cloud.entry()
    gate = tmp_path / "gate"
    plan = plan_of(
        WAITS, {**entry, "up": f"touch {gate}.waits; while [ ! -e {gate} ]; do sleep 0.05; done; {entry['up']}"}
    )
    process = client(plan, tmp_path, "killed")
    wait_until(lambda: Path(f"{gate}.waits").exists(), "up is at work")
    (record,) = Records().all()
    assert record.state == rental.REQUESTED, "recorded before it is asked for"
    process.kill()
    process.wait()
    gate.touch()
    wait_until(lambda: cloud.folder.joinpath("calls").exists() and "down killed vm-killed" in cloud.calls, "given back")
    wait_until(lambda: cloud.machines == [] and Records().all() == [], "nothing is left")
    wait_until(lambda: guardians(record.url) == [], "nothing is left to guard")


def test_a_killed_client_is_outlived_and_the_machine_given_back_at_the_end(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    plan = plan_of(
        FakeBehaviour(lines=("working",)), cloud.entry(), setup=(f"while [ ! -e {go} ]; do sleep 0.05; done",)
    )
    process = client(plan, tmp_path, "outlived", "follow")
    wait_until(lambda: bool(cloud.folder.joinpath("calls").exists() and Records().all()
                            and Records().all()[0].state == rental.STARTED), "it is started")  # fmt: skip
    process.send_signal(signal.SIGHUP)  # the terminal is closed …
    process.kill()  # … and what was in it is killed
    process.wait()
    assert cloud.machines == ["vm-outlived"]
    go.touch()
    wait_until(lambda: cloud.machines == [], "the guardian gives it back")
    hold = lifecycle.open_run(str(tmp_path / "runs" / "outlived"))
    wait_until(lambda: (tmp_path / "runs/outlived/teardown.json").exists(), "and writes the receipt")
    assert [line.text for line in hold.logs(rank=0)] == ["working"]
    assert hold.outcome().exit_code == 0


def test_without_a_client_and_without_a_guardian_the_machine_ends_itself(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    gone, go = cloud.folder / "machines" / "vm-alone", tmp_path / "go"
    entry = cloud.entry(self_down=f"rm {gone}", linger=0.5)
    alone = (f"while [ ! -e {go} ]; do sleep 0.05; done",)  # it begins when nobody here can see its end
    plan = plan_of(WAITS, entry, budget=Budget(hours=3 / 3600), setup=alone)
    hold = lifecycle.launch(plan, name="alone", detach=True, target=target_of(plan, []))
    for pid in guardians(hold.url):
        os.kill(pid, signal.SIGKILL)
    assert cloud.machines == ["vm-alone"]
    go.touch()
    wait_until(lambda: cloud.machines == [], "the watchdog runs self_down after the budget is spent")
    assert lifecycle.down(hold.url, say=lambda text: None).left == ()


def test_a_machine_that_stays_is_in_the_receipt_and_found_by_gc(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    entry = cloud.entry(gone=0.5)  # for the guardian too: whoever sees the end first waits
    plan = plan_of(FakeBehaviour(), {**entry, "down": "echo {id} is busy"})
    target = target_of(plan, [])
    hold = lifecycle.launch(plan, name="sticky", detach=True, target=target)
    outcome = hold.wait()
    assert outcome.exit_code == 5
    assert outcome.receipt is not None
    assert outcome.receipt.left == ("machine vm-sticky",)
    for pid in guardians(hold.url):
        os.kill(pid, signal.SIGKILL)
    (found,) = target.list_runs()
    assert (found.run, found.url) == ("sticky", hold.url)
    willing = SshTarget(Options(**entry), log=lambda text: None)
    assert willing.down(found).left == ()
    assert cloud.machines == []
    assert target.list_runs() == []


def test_who_waits_for_another_process_that_takes_the_run_down_is_told(
    cloud: Cloud, plan_of: Callable[..., Plan]
) -> None:
    said: list[str] = []
    target = target_of(plan_of(FakeBehaviour(), cloud.entry()), said)
    hold = lifecycle.launch(plan_of(FakeBehaviour(), cloud.entry()), name="shared", detach=True, target=target)
    with ThreadPoolExecutor() as pool, locked(*Records().lock(hold.url)):
        waiting = pool.submit(target.down, hold.target_handle)
        wait_until(lambda: any("by another process" in line for line in said), "it says what it waits for")
        assert not waiting.done()
    assert waiting.result().left == ()


def test_a_stop_ends_the_billing_and_a_resume_rents_again_and_goes_on_where_it_was(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    project = write_counting(tmp_path / "counting")
    plan = plan_of(FakeBehaviour(), cloud.entry(), script=COUNT, root=str(project), args=("8", "0.01", "3"))
    target = target_of(plan, [])
    hold = lifecycle.launch(plan, name="twice", detach=True, target=target)
    wait_until(lambda: len(counted(hold)) == 3, "it counts")
    assert hold.stop().status.state is State.STOPPED
    assert cloud.machines == []
    again = lifecycle.resume(hold.url, target=target)
    assert cloud.machines == ["vm-twice"]
    assert again.wait().status.state is State.FINISHED
    assert counted(again) == count_to(8)
    assert cloud.machines == []
    assert [call for call in cloud.calls if call.startswith("up")] == ["up twice"] * 2


def test_down_of_a_copied_folder_leaves_the_machine_and_the_guardian_of_the_original(
    cloud: Cloud, plan_of: Callable[..., Plan]
) -> None:
    plan, said = plan_of(WAITS, cloud.entry()), []
    target = target_of(plan, said)
    hold = lifecycle.launch(plan, name="first", detach=True, target=target)
    wait_until(lambda: prints(hold), "it runs")
    copy = lifecycle.open_run(copied(hold.url, "second"), target=target)
    assert copy.status().state is State.LOST
    assert copy.down() == copy.stop().receipt == Receipt(run="second")
    assert cloud.machines == ["vm-first"]
    assert not [call for call in cloud.calls if call.startswith("down")]
    assert len(guardians(hold.url)) == 1
    again = lifecycle.resume(copy.url, target=target)
    assert cloud.machines == ["vm-first", "vm-second"]
    assert len(guardians(again.url)) == 1, "the copy is guarded by a process of its own"
    again.stop()
    assert cloud.machines == ["vm-first"]
    hold.stop()
    assert cloud.machines == []


def test_machines_that_were_rented_for_a_folder_that_cannot_be_seen_are_not_said_to_be_gone(
    cloud: Cloud, plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(WAITS, cloud.entry())
    target = target_of(plan, [])
    hold = lifecycle.launch(plan, name="first", detach=True, target=target)
    copy = copied(hold.url, "second")
    with monkeypatch.context() as elsewhere:  # another machine, with no record of the rental, and another path
        elsewhere.setenv("HEADWAY_HOME", str(tmp_path / "another-home"))
        os.rename(hold.url, tmp_path / "away")
        with pytest.raises(TargetError, match="were rented when its folder was"):
            lifecycle.open_run(copy, target=target).down()
        os.rename(tmp_path / "away", hold.url)
    assert cloud.machines == ["vm-first"]
    hold.stop()
    assert cloud.machines == []


def test_down_by_name_alone_finds_a_machine_of_which_no_record_is_left(
    cloud: Cloud, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of(WAITS, cloud.entry())
    target = target_of(plan, [])
    hold = lifecycle.launch(plan, name="orphan", detach=True, target=target)
    for pid in guardians(hold.url):
        os.kill(pid, signal.SIGKILL)
    target.down(hold.target_handle)  # ends what runs, so that the test leaves nothing
    (cloud.folder / "machines" / "vm-orphan").touch()
    Records().delete(hold.url)
    assert target.down(type(hold.target_handle)(target="vm", run="orphan", url=hold.url)).left == ()
    assert cloud.machines == []


def test_what_up_prints_is_understood_line_by_line(tmp_path: Path) -> None:
    text = "creating…\nhost=10.0.0.1 hostkey=ssh-ed25519 AAAA+/b== id=i-1\n"
    text += "id=i-2 host=fe80::1 user=ubuntu port=2222\ndone\n"
    one, two = parse_machines(text, tmp_path / "keys")
    assert (one.host, one.id, one.first_seen) == ("10.0.0.1", "i-1", False)
    assert (two.host, two.id, two.user, two.port, two.first_seen) == ("fe80::1", "i-2", "ubuntu", 2222, True)
    assert (tmp_path / "keys").read_text() == "headway-i-1 ssh-ed25519 AAAA+/b==\n"


def test_what_is_filled_in_is_one_word_of_the_shell() -> None:
    assert fill_placeholders("rm {id} --run={run}", run="a-1", id="x; rm -rf /") == "rm 'x; rm -rf /' --run=a-1"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"down": None}, "no `down` to release it"),
        ({"up": "create it"}, "after a crash nobody could find it"),
        ({"down": "destroy everything"}, "neither {run} nor {id}"),
        ({"list": "ls {name}/{run}"}, "{name}, which is not a known placeholder"),
        ({"host": "box"}, "both which machine to use and how to rent one"),
    ],
)
def test_commands_that_could_lose_a_machine_are_refused(
    cloud: Cloud, plan_of: Callable[..., Plan], change: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadJob) as caught:
        plan_of(FakeBehaviour(), {**cloud.entry(), **change})
    assert what in str(caught.value)


def test_the_plan_says_what_stays_billed_and_where(cloud: Cloud, plan_of: Callable[..., Plan]) -> None:
    bare = plan_of(FakeBehaviour(), cloud.entry(list=None))
    assert any("stays billed until `headway down`" in note for note in bare.notes)
    assert any("the exit code of `down` alone" in note for note in bare.notes)
    safe = plan_of(FakeBehaviour(), cloud.entry(self_down="poweroff"), budget=Budget(hours=1))
    assert not any("stays billed" in note for note in safe.notes)
    assert "self_down" in safe.limits.second
    assert json.loads(safe.to_json())["requests"][0]["name"] == "rental.json"
