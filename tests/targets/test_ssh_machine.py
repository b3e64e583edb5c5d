"""What only a machine behind a connection can do to a run: be unknown, be cut off, be full, be bare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob, TargetError
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan, plan
from headway.spec import Accelerator, Budget, Data, Image, Job, Resources, Secret, Source, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.ssh import agent, checks, connection, sync
from headway.targets.ssh import lifecycle as ssh_lifecycle
from headway.targets.ssh.connection import Host
from headway.targets.ssh.options import Options, layout
from headway.targets.ssh.sync import Mirror
from headway.targets.ssh.target import SshTarget
from tests.contract.counting import COUNT, count_to, counted, write_counting
from tests.contract.plays import plan_play, write_project
from tests.contract.suite import WAITS
from tests.testbed.sshd import Server, lacking, running_below
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no sshd here: {lacking()}"),
]
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    yield
    wait_until(lambda: running_below(tmp_path) == [], "nothing of ours runs there")


@pytest.fixture
def entry(server: Server, tmp_path: Path) -> dict[str, Any]:
    return {"host": "box", "config": str(server.config), "dir": str(tmp_path / "there"), "python": sys.executable}


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    project = write_project(tmp_path / "project")

    def made(play: FakeBehaviour, entry: dict[str, Any], **more: Any) -> Plan:
        entries = {"box": TargetEntry(kind="ssh", options=entry)}
        return plan_play(project, play, **{"on": "box", "outputs": str(tmp_path / "runs"), "targets": entries, **more})

    return made


def target_of(plan: Plan, said: list[str] | None = None) -> SshTarget:
    return SshTarget(Options(**plan.options), log=(said if said is not None else []).append)


def texts(hold: RunHandle) -> list[str]:
    return [line.text for line in hold.logs(rank=0)]


# Keys.


def test_a_machine_whose_key_nobody_vouched_for_is_refused_and_nothing_is_sent(
    server: Server, entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    known = server.folder / "known_hosts"
    kept = known.read_text()
    known.write_text("")
    try:
        made = plan_of(FakeBehaviour(), entry)
        with pytest.raises(TargetError, match="is not known here") as caught:
            lifecycle.launch(made, name="stranger", target=target_of(made))
        assert "ssh-keyscan" in str(caught.value)
        assert not (tmp_path / "there").exists()
        assert known.read_text() == "", "and it is not made known by the way"
    finally:
        known.write_text(kept)


def test_a_machine_that_shows_another_key_than_before_is_refused(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    impostor = Server(tmp_path / "impostor")
    impostor.start()
    try:
        impostor.change_host_key()
        made = plan_of(FakeBehaviour(), {**entry, "config": str(impostor.config)})
        with pytest.raises(TargetError, match="different host key"):
            lifecycle.launch(made, name="changed", target=target_of(made))
    finally:
        impostor.stop()


# Connections.


@pytest.mark.ci
def test_a_run_survives_its_connections_and_is_found_again(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    box = Server(tmp_path / "sshd")
    box.start()
    project, go = write_counting(tmp_path / "counting"), tmp_path / "go"
    made = plan_of(
        FakeBehaviour(),
        {**entry, "config": str(box.config)},
        script=COUNT,
        root=str(project),
        args=("8", "0", "2", str(go)),
    )
    hold = lifecycle.launch(made, name="cut-off", detach=True, target=target_of(made))
    try:
        wait_until(lambda: len(counted(hold)) >= 1, "it counts")
        box.stop()
        status = hold.target.status(hold.target_handle)
        assert "cannot be reached" in status.reason
        assert not status.state.ended, "nobody could be asked: that is no end"
        with pytest.raises(TargetError, match="cannot be reached"):
            hold.down()
        go.touch()
        box.start()
        assert hold.wait().status.state is State.FINISHED
        assert counted(hold) == count_to(8)
    finally:
        if not box.port or box._process is None:
            box.start()
        hold.target.down(hold.target_handle)
        box.stop()


def test_a_machine_that_is_not_there_is_said_to_be_unreachable(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host nowhere\n  HostName 127.0.0.1\n  Port 9\n")
    made = plan_of(FakeBehaviour(), {"host": "nowhere", "config": str(tmp_path / "config")})
    with pytest.raises(TargetError, match="cannot be reached"):
        lifecycle.launch(made, name="unlucky", target=target_of(made))
    assert not (tmp_path / "runs" / "unlucky").exists()


# Where outputs and data lie.


def test_outputs_under_the_share_are_written_by_the_machine_itself(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    made = plan_of(FakeBehaviour(lines=("in {HEADWAY_RUN_URL}",)), {**entry, "share": str(tmp_path)})
    assert not any("mirrored" in note for note in made.notes)
    hold = lifecycle.launch(made, name="shared", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED
    assert texts(hold) == [f"in {tmp_path}/runs/shared"]
    assert not list((tmp_path / "there").glob("runs/*"))


def test_a_share_that_is_another_folder_there_is_refused(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan_of(FakeBehaviour(), {**entry, "share": str(tmp_path)})
    monkeypatch.setattr(Host, "ask", _without_files(Host.ask))
    with pytest.raises(TargetError, match="is not the folder of that name here"):
        lifecycle.launch(made, name="elsewhere", target=target_of(made))


def _without_files(ask: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def asked(self: Host, verb: str, body: bytes = b"", **request: Any) -> dict[str, Any]:
        return {"texts": [None]} if verb == "mounted" else ask(self, verb, body, **request)

    return asked


@pytest.mark.ci
def test_data_of_this_machine_is_sent_once_under_its_fingerprint_and_the_rate_is_shown(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    data = tmp_path / "pictures"
    for number in range(12):
        (data / f"class-{number % 3}").mkdir(parents=True, exist_ok=True)
        (data / f"class-{number % 3}" / f"{number} ü.bin").write_bytes(os.urandom(50_000))
    reads = "data in {HEADWAY_PLAN_FILE}"
    sources = Data(train=(Source(source=str(data)),))
    made, said = plan_of(FakeBehaviour(lines=(reads,)), entry, data=sources), []
    assert any("12 files, 600.0 KB" in note for note in made.notes)
    hold = lifecycle.launch(made, name="first", target=target_of(made, said))
    assert hold.outcome().status.state is State.FINISHED
    assert any("600.0 KB sent" in text and "/s" in text for text in said)
    (there,) = (tmp_path / "there" / "data").iterdir()
    assert {path.name: path.read_bytes() for path in there.rglob("*.bin")} == {
        path.name: path.read_bytes() for path in data.rglob("*.bin")
    }
    again: list[str] = []
    lifecycle.launch(plan_of(FakeBehaviour(), entry, data=sources), name="second", target=target_of(made, again))
    assert any("is on box already" in text for text in again)
    assert not any("sent" in text for text in again)
    (data / "class-0" / "0 ü.bin").write_bytes(b"changed")
    assert sync.fingerprint(sync.scan_source(str(data))) != there.name


def test_a_transfer_that_was_cut_goes_on_with_what_is_missing(entry: dict[str, Any], tmp_path: Path) -> None:
    data = tmp_path / "words"
    data.mkdir()
    for name in ("a", "b", "c"):
        (data / name).write_text(name * 1000)
    with Host(connection.parse("box"), Options(**entry)) as host:
        folder = f"{host.facts['dir']}/data/{sync.fingerprint(sync.scan_source(str(data)))}"
        host.send(f"{folder}/a", b"a" * 1000)
        said: list[str] = []
        assert sync.upload_source(host, str(data), said.append) == folder
    assert any("2.0 KB sent" in text for text in said)
    assert Path(folder, "c").read_text() == "c" * 1000


def test_the_mirror_follows_what_is_written_replaced_and_deleted_there(entry: dict[str, Any], tmp_path: Path) -> None:
    there, here = tmp_path / "far", tmp_path / "near"
    for key, text in {"plan.json": "{}", "checkpoints/00000001/manifest.json": "m", "files/x y": "1"}.items():
        (here / key).parent.mkdir(parents=True, exist_ok=True)
        (here / key).write_text(text)
    with Host(connection.parse("box"), Options(**entry)) as host:
        mirror = Mirror(host, str(there), here, here / "ssh")
        mirror.push()
        assert (there / "files/x y").read_text() == "1"
        assert mirror.pull() == 0, "nothing has changed"
        big = os.urandom(9 << 20)
        (there / "checkpoints/00000002").mkdir()
        (there / "checkpoints/00000002/a.safetensors").write_bytes(big)
        (there / "files/x y").write_text("22")
        shutil.rmtree(there / "checkpoints/00000001")
        assert mirror.pull() == 2
        assert (here / "checkpoints/00000002/a.safetensors").read_bytes() == big
        assert (here / "files/x y").read_text() == "22"
        assert not (here / "checkpoints/00000001/manifest.json").exists()
        shutil.rmtree(there)
        assert mirror.pull() == 0
        assert (here / "files/x y").exists(), "a folder that is gone there has not been emptied"


# What runs there.


def test_setup_holds_for_the_run_and_its_failure_is_told_with_its_last_words(
    entry: dict[str, Any], plan_of: Callable[..., Plan]
) -> None:
    made = plan_of(FakeBehaviour(lines=("flavour {FLAVOUR}",)), entry, setup=("export FLAVOUR=vanilla",))
    hold = lifecycle.launch(made, name="set-up", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED
    assert texts(hold) == ["flavour vanilla"]
    made = plan_of(FakeBehaviour(), entry, setup=("echo the shelf is empty >&2", "false"))
    hold = lifecycle.launch(made, name="no-set-up", target=target_of(made))
    status = hold.outcome().status
    assert status.state is State.FAILED
    assert "setup: false" in status.reason


def test_requirements_are_installed_there_once_for_their_very_content(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    with zipfile.ZipFile(project / "shelf-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("shelf.py", "what = 'honey'\n")
        wheel.writestr("shelf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
        wheel.writestr("shelf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("shelf-1.0.dist-info/RECORD", "")
    (project / "requirements.txt").write_text("--no-index\n./shelf-1.0-py3-none-any.whl\n")
    (project / "eat.py").write_text("import shelf\nprint('ate', shelf.what)\n")
    keys = {"script": "eat.py", "root": str(project), "args": (), "requirements": "requirements.txt"}
    for name in ("one", "two"):
        made = plan_of(FakeBehaviour(), entry, **keys)
        hold = lifecycle.launch(made, name=name, target=target_of(made))
        assert hold.outcome().status.state is State.FINISHED, [line.text for line in hold.logs()]
        assert texts(hold) == ["ate honey"]
    assert len(list((tmp_path / "there" / "envs").glob("*/ready"))) == 1


@pytest.mark.skipif(not os.environ.get("HEADWAY_TEST_DAEMONS"), reason="ssh: make test-ssh fetches packages")
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_machine_of_which_nothing_is_known_is_given_an_environment(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path, tool: str
) -> None:
    """No interpreter is named: one is made with what the job and Headway need, by uv where that is installed."""
    setup = [f"export HOME={tmp_path}"]
    if tool == "uv":
        if not os.environ.get("HEADWAY_TEST_UV"):
            pytest.skip("ssh: uv could not be fetched")
        setup += [f"export PATH={os.environ['HEADWAY_TEST_UV']}:$PATH SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]
    (tmp_path / "project" / "requirements.txt").write_text("pathspec\n")
    (tmp_path / "project" / "see.py").write_text(
        "import sys, obstore, pathspec, yaml\nprint(sys.prefix, *open(f'{sys.prefix}/pyvenv.cfg').read().split())\n"
    )
    keys = {"script": "see.py", "args": (), "requirements": "requirements.txt", "setup": tuple(setup)}
    made = plan_of(FakeBehaviour(), {name: value for name, value in entry.items() if name != "python"}, **keys)
    hold = lifecycle.launch(made, name="bare", target=target_of(made))
    log = "".join(path.read_text() for path in (tmp_path / "runs" / "bare" / "ssh").glob("start-*.log"))
    assert hold.outcome().status.state is State.FINISHED, log
    (said,) = texts(hold)
    assert said.startswith(f"{tmp_path}/there/envs/")
    assert ("uv" in said.split()) == (tool == "uv")


@pytest.mark.ci
def test_the_limit_is_held_there_without_any_client(
    entry: dict[str, Any], plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_lifecycle, "lifetime_s", lambda plan: 3.0)
    made = plan_of(WAITS, entry, budget=Budget(hours=5))
    hold = lifecycle.launch(made, name="limited", detach=True, target=target_of(made))
    wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "the watchdog ends it")
    assert hold.outcome().status.state is State.STOPPED


def test_a_secret_given_as_a_file_lies_in_memory_and_is_gone_afterwards(
    entry: dict[str, Any], plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_HERE", "canary-of-a-file")
    made = plan_of(FakeBehaviour(lines=("at {KEY}",)), entry, secrets={"KEY": Secret(ref="env:KEY_HERE", as_="file")})
    hold = lifecycle.launch(made, name="keys", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED
    (line,) = texts(hold)
    assert line.startswith(f"at /dev/shm/headway-ssh-{os.getuid()}/")
    assert not Path(line[3:]).exists()


def test_a_second_machine_of_the_same_user_sees_only_its_own_runs(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    made = plan_of(WAITS, entry)
    hold = lifecycle.launch(made, name="mine", detach=True, target=target_of(made))
    other = SshTarget(Options(**{**entry, "dir": str(tmp_path / "another")}), log=lambda text: None)
    assert other.list_runs() == []
    hold.down()


def test_a_machine_of_ones_own_with_self_down_is_told_when_the_outputs_are_safe(
    entry: dict[str, Any], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    told = tmp_path / "went-down"
    made = plan_of(FakeBehaviour(lines=("done",)), {**entry, "self_down": f"touch {told}"})
    hold = lifecycle.launch(made, name="mine", target=target_of(made))
    assert hold.outcome().status.state is State.FINISHED
    assert texts(hold) == ["done"]
    wait_until(told.exists, "self_down runs, long before it would by itself")
    assert hold.target.list_runs() == []


def test_one_spelling_of_outputs_gives_one_place() -> None:
    one = layout(Options(host="a"), "gs://bucket/runs/", "r")
    assert one.place(0) == layout(Options(host="a"), "gs://bucket/runs", "r").place(0)


# Refusals, the script, the agent, the doctor.


@pytest.mark.parametrize(
    ("options", "job", "word"),
    [
        ({}, {}, "names no machine"),
        ({"host": "a", "hosts": ["b"]}, {}, "both `host` and `hosts`"),
        ({"host": "-oProxyCommand=x"}, {}, "not a machine's name"),
        ({"host": "a", "args": ["-oBatchMode=no"]}, {}, "Headway sets it"),
        ({"host": "a", "identity": "/not/there"}, {}, "there is no /not/there"),
        ({"host": "a", "down": "x {id}"}, {}, "`down` without `up`"),
        ({"host": "a", "share": "/not/there"}, {}, "`share` means the same folder"),
        ({"hosts": ["a", "b"]}, {"nodes": 2}, "must all see the run folder"),
        ({"host": "a"}, {"nodes": 2, "outputs": "gs://bucket/runs"}, "names 1 hosts"),
        ({"host": "a"}, {"secrets": {"K": Secret(ref="k8s://secret/key")}}, "Kubernetes"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_sent(
    plan_of: Callable[..., Plan], options: dict[str, Any], job: dict[str, Any], word: str
) -> None:
    with pytest.raises(BadJob) as caught:
        plan_of(FakeBehaviour(), options, **job)
    assert word in str(caught.value)


def test_a_machine_is_named_as_ssh_names_it() -> None:
    assert str(connection.parse("me@box:2222")) == "me@box:2222"
    assert connection.parse("[fe80::1]:22").host == "fe80::1"
    assert connection.parse("fe80::1").port is None
    words = connection.ssh_command(connection.parse("me@box:2222"), Options(args=("-J", "jump")), "true")
    assert words[-7:] == ["2222", "-J", "jump", "--", "box", "true"] or words[-5:] == [
        "-J",
        "jump",
        "--",
        "box",
        "true",
    ]
    assert "StrictHostKeyChecking=yes" in words


def test_the_script_is_the_one_that_was_reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headway.planning.build._environment_record", lambda job, target: {"python": "3.11.4", "threads": "1"}
    )
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    job = Job(
        name="words",
        script="train.py",
        root=str(tmp_path),
        outputs="gs://bucket/runs",
        requirements="requirements.txt",
        setup=("sudo mount /data",),
        resources=Resources(accelerator=Accelerator(kind="T4", count=2)),
        targets={"box": TargetEntry(kind="ssh", options={"host": "me@box"})},
    )
    made = plan(job, on="box")
    text = str(made.requests[0].body["text"])
    for word in ("{RUN}", "uv venv --python 3.11", "sudo mount /data", "exec 3<&0 </dev/null"):
        assert word in text or word == "{RUN}"
    shellcheck(text, tmp_path)
    golden = GOLDEN / "ssh-start.sh"
    steady = text.replace(made.headway, "VERSION").replace(_key(text), "KEY")
    assert steady == golden.read_text(), f"if this is meant: write it to {golden}"


def test_a_container_there_is_started_by_the_supervisors_own_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("headway.packaging.supervisor_runtime.runtime_name", lambda job, platform: "runtime-1.tar.gz")
    (tmp_path / "train.py").write_text("")
    box = TargetEntry(kind="ssh", options={"host": "me@box", "engine": "docker"})
    keys: dict[str, Any] = {"script": "train.py", "root": str(tmp_path), "outputs": "gs://bucket/runs"}
    made = plan(Job(name="words", image=Image(uri="image:1"), targets={"box": box}, **keys), on="box")
    text = str(made.requests[0].body["text"])
    assert '--entrypoint "$HEADWAY_DIR/runtimes/runtime-1"/lib/ld.so' in text
    assert '"$HEADWAY_PLACE/headway"/headway/supervisor/image_entry.py headway.runtime.worker --run' in text
    assert "--env PYTHONPATH" not in text
    shellcheck(text, tmp_path)


def _key(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("env=")).rpartition("/")[2].rstrip('"')


def shellcheck(text: str, folder: Path) -> None:
    (folder / "script.sh").write_text(text)
    subprocess.run(["bash", "-n", str(folder / "script.sh")], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(folder / "script.sh")], check=True)


def test_the_bootstrap_script_is_one_that_bash_understands(tmp_path: Path) -> None:
    shellcheck(ssh_lifecycle.BOOTSTRAP_SCRIPT.read_text(), tmp_path)


def test_the_agent_needs_nothing_that_an_old_python_lacks() -> None:
    """Python 3.8 is the oldest that serves: no syntax or module of later ones."""
    import ast

    source = Path(agent.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert not any(module and module.startswith("headway") for module in imported)


def test_the_doctor_looks_at_room_python_and_driver(entry: dict[str, Any]) -> None:
    job = Job(name="j", script="x.py")
    found = list(SshTarget(Options(**entry)).doctor(job))
    assert any("answers as" in finding.what for finding in found)
    assert any("free in" in finding.what for finding in found)
    assert not any(finding.mark == "bad" for finding in found), found
    wants = Job(name="j", script="x.py", resources=Resources(accelerator=Accelerator(kind="T4", count=1)))
    assert (
        any("no NVIDIA driver" in finding.what for finding in SshTarget(Options(**entry)).doctor(wants))
        or Path("/sys/module/nvidia").exists()
    )


@pytest.mark.parametrize(
    ("version", "built", "mark", "word"),
    [
        ("535.161.08", {"torch": "2.6.0", "cuda": "12.4"}, "ok", "fits"),
        ("470.82.01", {"torch": "2.6.0", "cuda": "12.4"}, "bad", "525.60.13 at least"),
        ("560.35.03", {"torch": "2.13.0", "cuda": "13.0"}, "bad", "580.65.6 at least"),
        ("580.82.07", {"torch": "2.13.0", "cuda": "13.0"}, "ok", "fits"),
        ("535.161.08", {"torch": "2.6.0+cpu", "cuda": None}, "bad", "CPU alone"),
        ("535.161.08", {}, "note", "CUDA 12 or older"),
        ("", {}, "bad", "no NVIDIA driver"),
    ],
)
def test_a_driver_is_held_against_the_torch_that_will_use_it(
    version: str, built: dict[str, Any], mark: str, word: str
) -> None:
    (finding,) = checks.driver_finding("box", version, built, wanted=True)
    assert finding.mark == mark
    assert word in finding.what


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices")
def test_a_scratch_disk_is_formatted_once_and_never_if_it_carries_anything(tmp_path: Path) -> None:
    disk, at = tmp_path / "disk", tmp_path / "scratch"
    with disk.open("wb") as file:
        file.truncate(64 << 20)
    fstab = Path("/etc/fstab").read_text() if Path("/etc/fstab").exists() else None
    device = subprocess.run(["losetup", "--find", "--show", str(disk)], capture_output=True, text=True).stdout.strip()
    if not device:
        pytest.skip("no loop device is to be had")
    script = ["bash", str(ssh_lifecycle.BOOTSTRAP_SCRIPT), "--scratch", device, "--at", str(at)]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(script, capture_output=True, text=True)

    try:
        done = run()
        assert f"formatted {device}" in done.stdout, done.stderr
        (at / "kept").write_text("still here")
        assert "formatted" not in run().stdout, "run again, it changes nothing"
        subprocess.run(["umount", str(at)], check=True)
        assert "mounted" in run().stdout
        assert (at / "kept").read_text() == "still here"
        subprocess.run(["umount", str(at)], check=True)
        subprocess.run(["e2label", device, "photographs"], check=True)
        refused = run()
        assert refused.returncode == 1
        assert "it is not touched" in refused.stderr
        assert subprocess.run(["blkid", "-o", "value", "-s", "LABEL", device], capture_output=True, text=True).stdout
    finally:
        subprocess.run(["umount", str(at)], capture_output=True)
        subprocess.run(["losetup", "--detach", device], check=True)
        if fstab is not None:
            Path("/etc/fstab").write_text(fstab)


def test_a_machine_sees_itself_as_it_was_reached(entry: dict[str, Any]) -> None:
    """Its host name may mean 127.0.1.1, which means another machine to every node."""
    with Host(connection.parse("box"), Options(**entry)) as host:
        assert host.facts["address"] == "127.0.0.1"
        assert json.dumps(host.facts)
        assert abs(host.facts["time"] - time.time()) < 60
