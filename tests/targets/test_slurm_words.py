"""What Slurm's commands say, understood: listings, endings, refusals. Recorded from real ones; needs no Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headway.core.command import CommandError
from headway.core.errors import TargetError
from headway.core.types import State
from headway.launcher import lifecycle
from headway.launcher.lifecycle import RunHandle
from headway.planning import plan
from headway.spec import Image, Job, Mount, Resources, Secret
from headway.storage import open_store, subfolders
from headway.targets.slurm import checks, client
from headway.targets.slurm.client import Unknown, Unreachable, command_error
from headway.targets.slurm.options import Options
from headway.targets.slurm.target import SlurmTarget
from tests.targets.test_slurm_script import LARGE, SMALL

ME = os.geteuid()


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the jobs."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("train.py", "requirements.txt"):
        (folder / name).touch()
    monkeypatch.chdir(folder)


@dataclass
class Recorded:
    """Answers by a command's first words. A question nobody recorded is an error."""

    answers: Mapping[str, str | CommandError]
    asked: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        line = " ".join(argv)
        self.asked.append(line)
        for start, answer in self.answers.items():
            if line.startswith(start):
                if isinstance(answer, CommandError):
                    raise answer
                return answer
        raise AssertionError(f"nobody expected: {line}")


LISTING = """\
12|RUNNING|n[1-2]|None|headway.run=r1,headway.expires=1800000000,headway.url=/shared/my%20l%C3%A4ufe/r1
13|PENDING||Resources|headway.run=r2,headway.url=gs://bucket/runs/r2
14|RUNNING|n3|None|(null)
15|CANCELLED|n4|None|headway.run=r3,headway.url=/shared/runs/r3
16|FUTURE_STATE|n4|None|headway.run=r4,headway.url=/shared/runs/r4
"""
NO_JOB = command_error(["scontrol"], "slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTS = command_error(["sacct"], "Slurm accounting storage is disabled")
NO_ANSWER = command_error(["sinfo"], "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
ANY = Options()
JOB_12 = "JobId=12 JobName=r1 UserId=a(1) JobState={} Reason=None Requeue=1 ExitCode={} Comment=JobState=FAKE"


def test_our_jobs_are_known_by_their_label() -> None:
    found = client.jobs(Recorded({"squeue": LISTING}))
    assert [(job.id, job.run, job.url, job.live) for job in found] == [
        ("12", "r1", "/shared/my läufe/r1", True),
        ("13", "r2", "gs://bucket/runs/r2", True),
        ("15", "r3", "/shared/runs/r3", False),
        ("16", "r4", "/shared/runs/r4", True),  # what nobody knows yet is not taken for dead
    ]
    assert found[0].expires == "1800000000"
    assert found[1].reason == "Resources"


def test_a_label_is_read_as_it_was_written() -> None:
    url = "/a, b=c/größer\n#'\"%41/r1"
    (job,) = client.jobs(Recorded({"squeue": f"7|RUNNING|n1|None|{client.label(url, 'r1', '99')}\n"}))
    assert (job.run, job.url, job.expires) == ("r1", url, "99")


def test_a_job_whose_comment_was_rewritten_is_known_by_its_number() -> None:
    ask = Recorded(
        {
            "squeue --noheader --states=all --jobs=14": f"14|RUNNING|n3|None|{ME}|/shared/runs/r9/slurm|by the site\n",
            "squeue --noheader --states=all --jobs=13": (
                f"13|PENDING||None|{ME}|/shared/runs/r9/slurm|headway.run=r2,headway.url=/x\n"
            ),
            "squeue --noheader --states=all --jobs=99": NO_JOB,
            "squeue --noheader --states=all --user": LISTING,
        }
    )
    place = Path("/shared/runs/r9/slurm")
    assert [job.id for job in client.jobs_of(ask, "/shared/runs/r9", "14", run_dir=place)] == ["14"]
    assert client.jobs_of(ask, "/shared/runs/r9", "13", run_dir=place) == [], "it is another run's"
    assert client.jobs_of(ask, "/shared/runs/r9", "99", run_dir=place) == []
    first = client.jobs_of(ask, "/shared/my läufe/r1", "14", run_dir=Path("/shared/my läufe/r1/slurm"))
    assert [job.id for job in first] == ["12"], "a label comes first"
    copy = client.jobs_of(ask, "/shared/runs/copy", "14", run_dir=Path("/shared/runs/copy/slurm"))
    assert copy == [], "a copied folder names the number of its original's job"


@pytest.mark.parametrize(
    ("answers", "state", "code"),
    [
        ({"scontrol": JOB_12.format("NODE_FAIL", "0:0")}, "NODE_FAIL", 0),
        ({"scontrol": JOB_12.format("FAILED", "7:0")}, "FAILED", 7),
        ({"scontrol": JOB_12.format("CANCELLED", "0:9")}, "CANCELLED", 137),
        ({"scontrol": NO_JOB, "sacct --noheader": "CANCELLED by 1000|0:15\n"}, "CANCELLED", 143),
        (
            {"scontrol": NO_JOB, "sacct --noheader": NO_ACCOUNTS, "sacct --completion": "PREEMPTED|0:0\nTIMEOUT|0:0\n"},
            "TIMEOUT",
            0,
        ),
        ({"scontrol": NO_JOB, "sacct --noheader": "", "sacct --completion": "OUT_OF_MEMORY|\n"}, "OUT_OF_MEMORY", None),
    ],
)
def test_an_ending_is_asked_of_whoever_still_knows(
    answers: Mapping[str, str | CommandError], state: str, code: int | None
) -> None:
    found = client.job_end(Recorded(answers), "12")
    assert found == client.JobEnd(state=state, exit_code=code)
    assert str(found)


def test_an_ending_that_nobody_knows_is_none_and_a_silent_controller_is_said() -> None:
    nobody = Recorded({"scontrol": NO_JOB, "sacct --noheader": NO_ACCOUNTS, "sacct --completion": ""})
    assert client.job_end(nobody, "12") is None
    with pytest.raises(Unreachable):
        client.job_end(Recorded({"scontrol": NO_ANSWER}), "12")


FAILED = "sbatch: error: Batch job submission failed"


@pytest.mark.parametrize(
    ("said", "kind", "typed"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Unreachable, "scontrol ping"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", Unreachable, "scontrol ping"),
        ("sinfo: fatal: Unable to process configuration file", Unreachable, "SLURM_CONF"),
        ("sbatch: error: If munged is up, restart with --num-threads=10", Unreachable, "munge"),
        (f"{FAILED}: Invalid partition name specified", CommandError, "partition"),
        (f"{FAILED}: Invalid account or account/partition combination specified", CommandError, "account"),
        (f"{FAILED}: Invalid qos specification", CommandError, "qos"),
        ("allocation failure: Invalid feature specification", CommandError, "sinfo"),
        ("allocation failure: Requested node configuration is not available", CommandError, "gres"),
        (f"{FAILED}: Requested time limit is invalid (missing or exceeds some limit)", CommandError, "time"),
        ("scancel: error: Kill job error on job id 5: Invalid job id specified", Unknown, ""),
        ("scancel: error: Kill job error on job id 5: Job/step already completing or completed", Unknown, ""),
    ],
)
def test_a_refusal_says_what_to_type(said: str, kind: type[CommandError], typed: str) -> None:
    error = command_error(["sbatch"], said)
    assert type(error) is kind
    assert typed in error.problem.fix
    assert error.output == said


def test_a_refusal_that_nobody_foresaw_is_repeated() -> None:
    assert "the moon is full" in str(command_error(["sbatch"], "sbatch: error: the moon is full"))
    assert "no reason" in str(command_error(["sbatch"], ""))


def test_a_machine_without_slurm_says_where_to_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="login node"):
        client.run(["sbatch", "--version"])


# A run whose job is gone without a last word.


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str | CommandError]], RunHandle]:
    """A run whose job has the number 77, on a cluster that says what the test wants."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))

    def submit(answers: dict[str, str | CommandError]) -> RunHandle:
        ask = Recorded({"sbatch --parsable": "77;cluster\n", "squeue": "", **CLUSTER, **answers})
        (tmp_path / "x.py").write_text("")
        job = Job(name="j", script="x.py", outputs=str(tmp_path / "runs"), root=str(tmp_path))
        target = SlurmTarget(run_command=ask)
        return lifecycle.launch(plan(job, on="slurm"), detach=True, target=target)

    return submit


@pytest.mark.parametrize(
    ("ended", "state", "word"),
    [
        ("CANCELLED", State.STOPPED, "before its first attempt"),
        ("DEADLINE", State.STOPPED, "max_wait"),
        ("FAILED", State.FAILED, "every node can read"),
        ("NODE_FAIL", State.LOST, "a node failed"),
        ("OUT_OF_MEMORY", State.LOST, "resources.memory"),
        ("TIMEOUT", State.LOST, "time limit"),
    ],
)
def test_a_run_without_a_last_word_is_told_by_how_its_job_ended(
    submitted: Callable[[dict[str, str | CommandError]], RunHandle], ended: str, state: State, word: str
) -> None:
    hold = submitted({"scontrol show job 77": JOB_12.format(ended, "1:0")})
    assert hold.target_handle.details["job"] == "77"
    status = hold.target.status(hold.target_handle)
    assert status.state is state
    assert word in status.reason
    assert status.state.resumable


def test_a_job_that_everybody_has_forgotten_is_told_by_what_its_script_left(
    submitted: Callable[[dict[str, str | CommandError]], RunHandle],
) -> None:
    hold = submitted({"scontrol": NO_JOB, "sacct --noheader": NO_ACCOUNTS, "sacct --completion": ""})
    assert hold.target.status(hold.target_handle).state is State.LOST
    assert "no longer known" in hold.target.status(hold.target_handle).reason
    place = Path(hold.target_handle.details["dir"])
    (place / "exit").write_text("77 3\n")
    (place / "job-77.log").write_text("headway: setup: false\nslurmstepd: error: noise\n")
    status = hold.target.status(hold.target_handle)
    assert (status.state, status.exit_code) == (State.FAILED, 3)
    assert status.reason.endswith("last output: headway: setup: false")
    (place / "exit").write_text("12 3\n")
    assert hold.target.status(hold.target_handle).state is State.LOST, "that was another job's"


def test_a_refused_submission_leaves_nothing(
    submitted: Callable[[dict[str, str | CommandError]], RunHandle], tmp_path: Path
) -> None:
    refused = command_error(["sbatch"], f"{FAILED}: Invalid account or account/partition combination specified")
    with pytest.raises(TargetError, match="one of them as `account`"):
        submitted({"sbatch --parsable": refused})
    assert subfolders(open_store(str(tmp_path / "runs"))) == ["code"]


# What would stop a job, found without submitting one.

CLUSTER: dict[str, str | CommandError] = {
    "sbatch --version": "slurm-wlm 22.05.8\n",
    "sinfo --noheader --format=%R": "debug\ngpu\n",
    "sbatch --test-only": "",
    "scontrol show config": "KillWait                = 30 sec\n",
}


def said(job: Job, options: Options = ANY, **answers: str | CommandError) -> list[str]:
    online = checks.online(job, options, Recorded({**CLUSTER, **answers}))
    return [str(problem) for problem in (*checks.problems(job, options), *online)]


def test_nothing_is_wrong_with_a_job_that_slurm_would_take() -> None:
    assert said(SMALL) == []
    ask = Recorded(CLUSTER)
    assert list(checks.online(LARGE, Options(partition="gpu"), ask)) == []
    (trial,) = [line for line in ask.asked if "--test-only" in line]
    assert "--nodes=2" in trial
    assert "--gres=gpu:t4:4" in trial
    assert "--time=8:04:00" in trial


def test_a_machine_without_slurm_and_a_silent_controller_are_problems() -> None:
    (problem,) = said(SMALL, **{"sbatch --version": client.not_installed("sbatch")})
    assert "login node" in problem
    (problem,) = said(SMALL, **{"sinfo --noheader --format=%R": NO_ANSWER})
    assert "scontrol ping" in problem


def test_an_unknown_partition_is_answered_with_the_nearest() -> None:
    (problem,) = said(SMALL, Options(partition="gpus"))
    assert "no partition 'gpus'" in problem
    assert "fix: partition: gpu" in problem
    assert "one of debug, gpu" in said(SMALL, Options(partition="xyz"))[0]
    assert said(SMALL, Options(partition="debug,gpu")) == []


def test_what_slurm_itself_would_refuse_is_found_before_launch() -> None:
    refused = command_error(["sbatch"], "allocation failure: Requested node configuration is not available")
    (problem,) = said(LARGE, **{"sbatch --test-only": refused})
    assert "no node of that partition" in problem
    later = command_error(["sbatch"], "allocation failure: Required node not available (down, drained or reserved)")
    assert said(LARGE, **{"sbatch --test-only": later}) == []


@pytest.mark.parametrize(
    ("job", "options", "word"),
    [
        (SMALL, Options(args=("--array=0-9",)), "--array"),
        (SMALL, Options(args=("exclusive",)), "not an option"),
        (SMALL, Options(time=60.0), "too short"),
        (SMALL, Options(constraint="a b"), "constraint"),
        (replace(SMALL, outputs="/" + "ü" * 300), Options(), "shorter"),
        (replace(SMALL, mounts=(Mount(at="/data", nfs="server:/export"),)), Options(), "server:/export"),
        (replace(SMALL, secrets={"KEY": Secret(ref="k8s://secret/key")}), Options(), "env:KEY"),
    ],
)
def test_what_cannot_be_done_here_is_said(job: Job, options: Options, word: str) -> None:
    (problem,) = said(job, options)
    assert word in problem
    assert "fix:" in problem


def noted(job: Job, options: Options = ANY, ranks: int = 1, **answers: str) -> str:
    online = checks.online_notes(options, Recorded({**CLUSTER, **answers}))
    return "\n".join([*checks.notes(job, ranks, options), *online])


def test_planning_asks_no_cluster() -> None:
    target = SlurmTarget(run_command=Recorded({}))
    assert target.check(SMALL) == []
    assert target.notes(SMALL, 1)
    assert plan(SMALL, on="slurm").requests[0].name == "job.sbatch"


def test_what_a_reader_of_the_plan_should_know_is_noted(tmp_path: Path) -> None:
    job = replace(
        SMALL,
        outputs=str(tmp_path),
        resources=Resources(spot=True, machine="n1-standard-8"),
        image=Image(uri="an/image"),
        max_wait=60.0,
        secrets={"GOOGLE_APPLICATION_CREDENTIALS": Secret(ref="file:key.json", as_="file")},
    )
    notes = noted(job, ranks=4, **{"scontrol show config": "KillWait                = 10 sec\n"})
    words = ("resources.spot", "image", "4 CPUs", "max_wait", "a key file", "every node must see it", "grace: 10s")
    for word in words:
        assert word in notes, word
    assert noted(replace(SMALL, outputs=str(tmp_path), resources=Resources(cpus=2)), ranks=1).count("\n") == 0


def test_a_shared_folder_needs_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(SMALL, resources=Resources(cpus=2))
    monkeypatch.setattr(checks, "_file_system", lambda path: "nfs4")
    assert noted(job) == ""
    monkeypatch.setattr(checks, "_file_system", lambda path: "ext4")
    assert "every node must see it" in noted(job)


def test_the_file_system_of_a_path_is_that_of_the_longest_mount_above_it(tmp_path: Path) -> None:
    assert checks._file_system(Path("/proc/self")) == "proc"
    assert checks._file_system(tmp_path / "not" / "there") == checks._file_system(tmp_path) != ""
