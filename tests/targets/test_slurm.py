"""A real Slurm as a target: four nodes on this machine, preempted, cancelled, failed and killed in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob, TargetError
from headway.core.types import Handle, State, Status, Target
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import Plan
from headway.spec import Accelerator, Job, Resources, Secret, TargetEntry
from headway.targets.fake import FakeBehaviour
from headway.targets.local import processes
from headway.targets.slurm import client as slurm_client
from headway.targets.slurm import lifecycle as slurm_lifecycle
from headway.targets.slurm.client import run as run_command
from headway.targets.slurm.options import Options
from headway.targets.slurm.target import SlurmTarget
from tests.contract.suite import CANARY, WAITS, TargetContract, copied
from tests.servers.gcs import GcsServer
from tests.testbed.slurm.cluster import Cluster, lacking
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=f"no Slurm here: {lacking()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def supervisors(hold: RunHandle) -> list[processes.Process]:
    found = processes.processes_of(hold.url, target="slurm")
    return [process for process in found if process.runs("headway.runtime.worker")]


def job_of(hold: RunHandle) -> slurm_client.Job:
    (job,) = slurm_client.jobs_of(run_command, hold.url, run_dir=Path(hold.target_handle.details["dir"]))
    return job


def place(hold: RunHandle) -> Path:
    return Path(hold.target_handle.details["dir"])


def _waits_again(status: Status) -> bool:
    return status.state is State.PENDING and "whether it continues from them is up to the program" in status.reason


def attempts(hold: RunHandle) -> int:
    return [event["kind"] for event in hold.folder.events()].count("attempt")


class TestSlurm(TargetContract):
    kind = "slurm"

    @pytest.fixture
    def target(self, cluster: Cluster) -> Iterator[Target]:
        target = SlurmTarget()
        yield target
        wait_until(lambda: target.list_runs() == [], "nothing of ours is left in the queue")

    def half_gone(self, hold: RunHandle) -> None:
        (leader,) = supervisors(hold)
        ranks = [
            process for process in processes.processes_of(hold.url, target="slurm") if process.parent == leader.pid
        ]
        os.kill(ranks[-1].pid, signal.SIGSTOP)  # it cannot die of a SIGTERM any more
        os.kill(leader.pid, signal.SIGKILL)

    @contextmanager
    def lost_host(self, hold: RunHandle) -> Iterator[None]:
        (leader,) = supervisors(hold)
        leader.send(signal.SIGSTOP)
        yield
        leader.send(signal.SIGKILL)

    def own_limit_s(self, hold: RunHandle) -> float | None:
        shown = run_command(["scontrol", "--oneliner", "show", "job", str(hold.target_handle.details["job"])])
        (limit,) = [word.partition("=")[2] for word in shown.split() if word.startswith("TimeLimit=")]
        hours, minutes, seconds = map(int, limit.split(":"))
        return hours * 3600.0 + minutes * 60.0 + seconds

    @contextmanager
    def failing_submit(self, monkeypatch: pytest.MonkeyPatch, target: Target) -> Iterator[None]:
        def no_space(place: Path, number: str) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(
                slurm_lifecycle, "_write_job_id", no_space
            )  # Slurm has taken the job, and its number cannot be kept
            yield

    def lines_about_a_secret(self) -> tuple[str, ...]:
        return ("the token is {TOKEN}",)

    @pytest.fixture
    def start_on(self, plan_of: Callable[..., Plan], target: Target) -> Iterator[Callable[..., RunHandle]]:
        """Launch a play on a target with options of its own, detached."""
        holds: list[RunHandle] = []

        def begin(play: FakeBehaviour, options: dict[str, Any], **more: Any) -> RunHandle:
            entries = {"slurm": TargetEntry(kind="slurm", options=options)}
            hold = lifecycle.launch(plan_of(play, targets=entries, **more), detach=True)
            holds.append(hold)
            return hold

        yield begin
        for hold in holds:
            hold.target.down(hold.target_handle)

    # Several nodes, several ranks.

    @pytest.mark.ci
    def test_two_nodes_of_two_ranks_know_each_other(self, start: Callable[..., RunHandle]) -> None:
        line = "rank {rank} of {world} on {SLURM_NODEID} at {MASTER_ADDR}, files in {HEADWAY_RUN_DIR}"
        hold = start(FakeBehaviour(lines=(line,)), nodes=2, ranks=2)
        assert hold.wait().status.state is State.FINISHED
        for rank in range(4):
            (said,) = self.texts(hold, rank=rank)
            own = place(hold) / f"node-{rank // 2}" / "files"
            assert said == f"rank {rank} of 4 on {rank // 2} at 127.0.0.1, files in {own}"

    def test_an_accelerator_is_a_rank_of_its_own(
        self, start: Callable[..., RunHandle], plan_of: Callable[..., Plan]
    ) -> None:
        hold = start(
            FakeBehaviour(lines=("rank {rank} of {world}",)),
            resources=Resources(accelerator=Accelerator(kind="T4", count=4)),
        )
        assert hold.wait().status.state is State.FINISHED
        assert [self.texts(hold, rank=rank) for rank in range(4)] == [[f"rank {rank} of 4"] for rank in range(4)]
        shown = run_command(["scontrol", "show", "job", hold.target_handle.details["job"]])
        assert "gres:gpu:t4:4" in shown

    # Taken away and given back.

    @pytest.mark.parametrize("partition", ["low", "polite"])
    def test_a_preempted_run_waits_in_the_queue_again_and_goes_on_where_it_was(
        self,
        start: Callable[..., RunHandle],
        start_on: Callable[..., RunHandle],
        cluster: Cluster,
        tmp_path: Path,
        partition: str,
    ) -> None:
        """In `low` Slurm ends and requeues it at once; in `polite` it is told a minute before, and ends by itself."""
        (tmp_path / "project" / "play.py").write_text(CHAIN)
        straight = start(FakeBehaviour(), name="straight")
        assert straight.wait().status.state is State.FINISHED
        hold = start_on(FakeBehaviour(), {"partition": partition}, nodes=2, env={"STOP_AT": "6"})
        wait_until(lambda: "step 6" in self.texts(hold), "it has made some steps")
        seen = tmp_path / "seen"
        urgent = f"--wrap=while [ ! -e {seen} ]; do sleep 0.1; done"
        cluster.run("sbatch", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null", urgent)
        try:
            # A job that Slurm is still clearing away is said to be completing in between.
            wait_until(lambda: _waits_again(hold.target.status(hold.target_handle)), "it waits again")
            assert not hold.target.status(hold.target_handle).state.ended
        finally:
            seen.touch()
        assert hold.wait().status.state is State.FINISHED
        assert attempts(hold) == 2
        assert self.texts(hold)[-1] == self.texts(straight)[-1], "as if it had never been interrupted"

    @pytest.mark.ci
    def test_slurms_warning_before_the_time_limit_is_a_checkpoint_and_another_turn(
        self, start: Callable[..., RunHandle], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        play = FakeBehaviour(lines=("rank {rank} of {world} waits for {TOKEN}",), until_stopped=True)
        hold = self.running(start(play, nodes=2, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE")}))
        number = hold.target_handle.details["job"]
        cluster.run("scancel", "--batch", "--signal=TERM", number)  # what --signal=B:TERM@120 makes Slurm do
        wait_until(lambda: len(self.texts(hold)) == 2, "it has its second turn, with its secret")
        assert self.texts(hold) == ["rank 0 of 2 waits for ***"] * 2
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert job_of(hold).id == number
        assert list((place(hold)).glob("private/*")) == [], "the secret is off the disk again"
        assert hold.stop().status.state is State.STOPPED

    def test_a_job_that_may_not_be_requeued_stops_when_its_time_is_over(
        self, start_on: Callable[..., RunHandle], cluster: Cluster
    ) -> None:
        hold = self.running(start_on(WAITS, {"requeue": False}))
        cluster.run("scancel", "--batch", "--signal=TERM", hold.target_handle.details["job"])
        wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "it ends")
        assert hold.outcome().status.state is State.STOPPED

    @pytest.mark.parametrize("waiting", [False, True])
    def test_scancel_from_outside_is_a_stop_and_not_a_turn_in_the_queue(
        self, start_on: Callable[..., RunHandle], cluster: Cluster, waiting: bool
    ) -> None:
        hold = start_on(WAITS, {"args": ["--hold"] if waiting else []})
        if not waiting:
            self.running(hold)
        assert hold.target.status(hold.target_handle).state is (State.PENDING if waiting else State.RUNNING)
        cluster.run("scancel", hold.target_handle.details["job"])
        wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "its end is seen")
        outcome = hold.outcome()
        assert (outcome.status.state, outcome.exit_code) == (State.STOPPED, 4)
        if not waiting:
            again = lifecycle.resume(hold.url)
            wait_until(lambda: len(self.texts(again)) == 2, "the second attempt prints")
            again.down()

    def test_a_job_whose_comment_a_site_has_rewritten_is_not_taken_for_a_copys(
        self, start: Callable[..., RunHandle], target: Target, cluster: Cluster
    ) -> None:
        hold = self.running(start(WAITS))
        number = str(hold.target_handle.details["job"])
        cluster.run("scontrol", "update", f"jobid={number}", "comment=by the site")
        assert hold.target.status(hold.target_handle).state is State.RUNNING, (
            "known by its number, and where it was submitted"
        )
        copy = copied(hold.url, "copy")
        assert target.down(Handle(target="slurm", run="copy", url=copy, details={"job": number})).left == ()
        assert lifecycle.open_run(copy, target=target).down().removed == ()
        assert hold.target.status(hold.target_handle).state is State.RUNNING
        assert hold.stop().status.state is State.STOPPED

    def test_when_a_node_fails_the_run_goes_on_on_others(
        self, start: Callable[..., RunHandle], cluster: Cluster
    ) -> None:
        hold = self.running(start(WAITS, nodes=2, ranks=1))
        failed = cluster.run("scontrol", "show", "hostnames", job_of(hold).nodes).split()[0]
        cluster.kill_node(failed)
        try:
            cluster.run("scontrol", "update", f"NodeName={failed}", "State=DOWN", "Reason=it burnt")
            wait_until(lambda: len(self.texts(hold)) == 2, "the second attempt prints", within_s=120)
            assert hold.target.status(hold.target_handle).state is State.RUNNING
            assert failed not in cluster.run("scontrol", "show", "hostnames", job_of(hold).nodes).split()
            assert hold.stop().status.state is State.STOPPED
        finally:
            cluster.start_node(failed)
            cluster.wait_for(
                lambda: cluster.run("sinfo", "-h", "-n", failed, "-p", "debug", "-o", "%T") == "idle", "it is back"
            )

    @pytest.mark.ci
    def test_a_killed_supervisor_is_a_lost_run_and_it_can_go_on(self, start: Callable[..., RunHandle]) -> None:
        hold = self.running(start(WAITS))
        supervisors(hold)[0].send(signal.SIGKILL)
        wait_until(lambda: hold.target.status(hold.target_handle).state.ended, "its end is seen")
        status = hold.target.status(hold.target_handle)
        assert status.state is State.LOST
        assert "137" in status.reason
        assert lifecycle.observe(hold.url).exit_code == 4
        again = lifecycle.resume(hold.url)
        wait_until(lambda: len(self.texts(again)) == 2, "the second attempt prints")

    # A client killed at every moment.

    @pytest.mark.parametrize("moment", ["before", "code", "submitted", "recorded"])
    def test_a_launcher_killed_at_any_moment_leaves_nothing_or_a_job_that_can_be_taken_down(
        self, plan_of: Callable[..., Plan], target: Target, tmp_path: Path, moment: str
    ) -> None:
        (tmp_path / "plan.json").write_text(plan_of(WAITS).to_json())
        client = subprocess.run(
            [sys.executable, "-c", KILLED_CLIENT, str(tmp_path / "plan.json"), moment], capture_output=True, text=True
        )
        assert client.returncode == -signal.SIGKILL, client.stderr
        url = str(tmp_path / "runs" / "orphan")
        live = moment in ("submitted", "recorded")
        assert [found.url for found in target.list_runs()] == ([url] if live else [])
        status = target.status(Handle(target="slurm", run="orphan", url=url))
        assert status.state in ((State.PENDING, State.RUNNING) if live else (State.LOST,))
        assert lifecycle.down(url).left == ()
        assert target.list_runs() == []
        if moment == "submitted":
            again = lifecycle.resume(url)
            wait_until(lambda: any("waits" in line.text for line in again.logs()), "it can still be run")
            again.down()

    # What a node runs.

    def test_setup_holds_for_the_ranks_and_requirements_are_there(
        self, start: Callable[..., RunHandle], tmp_path: Path
    ) -> None:
        wheel = tmp_path / "project" / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as content:
            content.writestr("tiny.py", "WORD = 'installed'\n")
            content.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
            content.writestr(
                "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            content.writestr("tiny-1.0.dist-info/RECORD", "")
        (tmp_path / "project" / "requirements.txt").write_text(f"./{wheel.name}\n")
        (tmp_path / "project" / "play.py").write_text(
            "import os, sys, tiny, yaml\nprint(os.environ['LOADED'], tiny.WORD, sys.prefix.rpartition('/')[2])\n"
        )
        hold = start(FakeBehaviour(), requirements="requirements.txt", setup=("export LOADED=cuda", "cd /"))
        assert hold.wait().status.state is State.FINISHED, self.log(hold)
        assert self.texts(hold) == ["cuda installed env"]

    def test_a_setup_that_fails_is_a_failed_run_with_its_last_words(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour(), setup=("echo the module is gone >&2; false",))
        outcome = hold.wait()
        assert outcome.status.state is State.FAILED
        assert "setup: echo the module is gone" in outcome.status.reason
        assert attempts(hold) == 0

    @pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no other interpreter here")
    def test_the_clusters_own_interpreter_needs_nothing_of_headways(self, start_on: Callable[..., RunHandle]) -> None:
        hold = start_on(FakeBehaviour(lines=("with {PYTHONPATH}",)), {"python": "/usr/bin/python3"}, nodes=2)
        assert hold.wait().status.state is State.FINISHED, self.log(hold)
        assert self.texts(hold, rank=1)[0].startswith(f"with {place(hold)}/headway")
        assert not (place(hold) / "headway").exists(), "what a resume would make again is not kept"

    def test_a_run_whose_folder_is_in_a_bucket_leaves_nothing_on_the_shared_disk(
        self, plan_of: Callable[..., Plan], target: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
            monkeypatch.delenv(name)
        lines = tuple(f"line {i}" for i in range(100))
        with GcsServer("bucket") as server:
            server.tokens.add("emulator")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            hold = lifecycle.launch(
                plan_of(FakeBehaviour(lines=lines), nodes=2, outputs="gs://bucket/runs"), detach=True
            )
            assert [line.text for line in hold.logs(follow=True, rank=1)] == list(lines)
            outcome = hold.wait()
            assert outcome.status.state is State.FINISHED
            assert outcome.receipt is not None
            assert outcome.receipt.left == ()
            assert not place(hold).exists()
            assert [line.text for line in lifecycle.logs(hold.url, rank=0)] == list(lines)

    def log(self, hold: RunHandle) -> str:
        return "".join(path.read_text() for path in place(hold).glob("job-*.log"))

    # Secrets.

    def test_a_secret_is_nowhere_in_slurm_nor_in_any_process_listing_nor_on_the_disk(
        self, start_on: Callable[..., RunHandle], cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        hold = start_on(WAITS, {"args": ["--hold"]}, nodes=2, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE")})
        number = hold.target_handle.details["job"]
        laid = place(hold) / "private" / "secrets.json"
        assert (laid.stat().st_mode & 0o777, laid.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        self.search(cluster.folder, number)
        cluster.run("scontrol", "release", number)
        self.running(hold)
        assert not laid.exists()
        self.search(cluster.folder, number)
        self.search(tmp_path, number)
        for entry_ in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert CANARY.encode() not in entry_.read_bytes()
            except OSError:  # gone while we looked
                continue
        hold.down()
        assert not laid.parent.exists()

    def search(self, folder: Path, number: str) -> None:
        for words in (["show", "job", number, "--details"], ["write", "batch_script", number, "-"]):
            assert CANARY not in run_command(["scontrol", *words])
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "secrets.json":
                assert CANARY.encode() not in path.read_bytes(), path

    def test_secrets_laid_for_a_run_that_never_started_are_removed(
        self, start_on: Callable[..., RunHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", CANARY)
        hold = start_on(WAITS, {"args": ["--hold"]}, secrets={"TOKEN": Secret(ref="env:TOKEN_HERE")})
        assert (place(hold) / "private").exists()
        assert hold.stop().status.state is State.STOPPED
        assert not (place(hold) / "private").exists()

    # What Slurm says.

    def test_an_ending_is_known_to_the_record_of_completed_jobs(self, start: Callable[..., RunHandle]) -> None:
        hold = start(FakeBehaviour(exit_code=7))
        hold.wait()
        number = hold.target_handle.details["job"]
        wait_until(
            lambda: slurm_client._end_from_completions(run_command, number) is not None, "Slurm has written it down"
        )
        for source in (slurm_client._end_from_controller, slurm_client._end_from_completions):
            ended = source(run_command, number)
            assert ended is not None
            assert ended.state == "FAILED"

    def test_a_silent_controller_leaves_what_the_folder_says(
        self, start: Callable[..., RunHandle], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = self.running(start(WAITS))
        silent = cluster.folder / "silent.conf"
        port = next(line for line in cluster.config.read_text().splitlines() if line.startswith("SlurmctldPort"))
        words = cluster.config.read_text().replace(port, "SlurmctldPort=1\nMessageTimeout=2")
        silent.write_text(words)
        with monkeypatch.context() as patch:
            patch.setenv("SLURM_CONF", str(silent))
            status = hold.target.status(hold.target_handle)
            assert status.state is State.RUNNING
            assert "cannot contact the Slurm controller" in status.reason
            with pytest.raises(TargetError, match="scontrol ping"):
                hold.down()
        assert hold.stop().status.state is State.STOPPED

    def test_what_this_cluster_would_refuse_is_found_before_launch(
        self, plan_of: Callable[..., Plan], target: Target
    ) -> None:
        for options, word in (
            ({"partition": "lo"}, "partition: low"),
            ({"constraint": "nvlink"}, "features"),
            ({"args": ["--nodelist=nowhere"]}, "Invalid node name"),
        ):
            made = plan_of(FakeBehaviour(), targets={"slurm": TargetEntry(kind="slurm", options=options)})
            with pytest.raises(BadJob, match=word):
                lifecycle.launch(made, name="refused", detach=True)
        made = plan_of(FakeBehaviour(), nodes=5)
        with pytest.raises(BadJob, match="no node of that partition"):
            lifecycle.launch(made, name="refused", detach=True)
        assert target.list_runs() == []


@pytest.mark.ci
def test_a_job_file_may_say_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    (tmp_path / "headway.yaml").write_text(
        "name: j\nscript: x.py\ntargets:\n"
        "  c: {kind: slurm, partition: gpu, account: a, qos: q, constraint: c, gres: gpu, time: 1d, grace: 60s,"
        " requeue: false, python: /usr/bin/python3, args: [--exclusive]}\n"
    )
    options = Job.load(tmp_path / "headway.yaml").targets["c"].options
    assert (options["time"], options["grace"], options["requeue"]) == (86400.0, 60.0, False)
    assert set(options) == set(json.loads(json.dumps(options))) <= set(Options.__dataclass_fields__)


KILLED_CLIENT = """
import os, signal, sys
from pathlib import Path
from headway.launcher import lifecycle as launcher; from headway.rundir import submission as intent
from headway.planning import Plan
from headway.targets.slurm import lifecycle as starting

def die(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

moment = sys.argv[2]
if moment == "before":
    intent.record_submission = die
elif moment == "code":
    starting.submit = die
elif moment == "submitted":
    starting._write_job_id = die
else:
    intent.save_handle_details = die
launcher.launch(Plan.from_json(Path(sys.argv[1]).read_text()), name="orphan", detach=True)
"""

# Each step depends on the one before it: a step lost, or made twice, shows in the last line.
CHAIN = """
import hashlib, json, os, signal, sys, time
from pathlib import Path

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
first, node0 = int(os.environ["HEADWAY_ATTEMPT"]) == 1, os.environ["RANK"] == "0"
kept = Path(os.environ["HEADWAY_RUN_DIR"]) / "kept.json"
step, value = json.loads(kept.read_text()) if kept.exists() else (0, "seed")
while step < 12:
    step, value = step + 1, hashlib.sha256(f"{value} {step}".encode()).hexdigest()
    if node0:
        print("step", step, flush=True)
    kept.write_text(json.dumps([step, value]))
    while first and step == int(os.environ.get("STOP_AT", -1)) and not asked:
        time.sleep(0.02)
    if asked:
        sys.exit(143)
print("ended with", value)
"""
