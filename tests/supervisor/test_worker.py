"""The supervisor with real processes: exit codes, restarts, signals, deadline, lease."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.platform import timing_with
from headway.rundir import lease
from headway.rundir.layout import PROGRESS, STOP, SUBMISSION
from tests.supervisor.supervised import Case, alive, cases
from tests.waiting import wait_until

Make = Callable[..., Case]


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


# -- the ordinary run -------------------------------------------------------------------------------------------------


def test_a_run_that_ends_well_says_so_and_gives_the_lease_back(make: Make) -> None:
    case = make("""
        print("hello from", RANK)
        control(progress={"step": 3, "loss": 0.5})
        control(event="checkpoint", step=3, bytes=10)
    """)
    assert case.run() == 0
    assert [event["kind"] for event in case.events()] == ["attempt", "started", "checkpoint", "ended"]
    assert case.ended["state"] == "finished"
    assert case.ended["exit_code"] == 0
    assert case.log() == ["hello from 0"]
    assert case.folder.read_json(PROGRESS) is not None
    record, _ = lease.read(case.folder.store)
    assert record is not None
    assert record.holder is None


def test_every_rank_sees_its_world_and_the_run(make: Make) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG GLOO_SOCKET_IFNAME "
        "OMP_NUM_THREADS "
        "PYTHONUNBUFFERED PYTHONHASHSEED HEADWAY_RUN HEADWAY_RUN_URL HEADWAY_ATTEMPT HEADWAY_PLAN HEADWAY_GRACE_S "
        "HEADWAY_DEADLINE_S HEADWAY_RUN_DIR HEADWAY_RESUME_DIR MINE"
    )
    case = make(
        f"""
        assert Path(os.environ["HEADWAY_PLAN"]).is_file()
        assert Path.cwd() == HERE / "code"
        print(json.dumps({{name: os.environ[name] for name in {names!r}.split()}}))
        """,
        processes=2,
        job={"env": {"MINE": "yes", "OMP_NUM_THREADS": "3"}},
        limits={"budget_s": 1000.0},
    )
    assert case.run() == 0, case.explain()
    first, second = (json.loads(case.log(rank)[0]) for rank in (0, 1))
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], first["WORLD_SIZE"]) == ("0", "1", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"
    assert (first["MINE"], first["OMP_NUM_THREADS"], first["GLOO_SOCKET_IFNAME"]) == ("yes", "3", "lo")
    assert 0 < float(first["HEADWAY_DEADLINE_S"]) <= 1000
    config = json.loads(second["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(set(config["cluster"]["worker"])) == 2
    (attempt,) = case.events("attempt")
    assert attempt["threads"] == "3"
    assert attempt["world"]["size"] == 2


def test_a_search_path_of_the_jobs_own_does_not_hide_the_headway_that_a_target_brought(make: Make) -> None:
    case = make("print(os.environ['PYTHONPATH'])", job={"env": {"PYTHONPATH": "/theirs:/brought"}})
    assert case.run(PYTHONPATH="/brought") == 0, case.explain()
    hook, *rest = case.log()[0].split(":")
    assert hook.endswith("rank_path"), "the folder of the integrations' hook, which holds no package"
    assert rest[:2] == ["/brought", "/theirs"]


def test_a_program_that_is_not_python_runs_as_it_is(make: Make) -> None:
    case = make("", job={"script": "go", "args": ["a b", "c"]})
    program = case.tmp / "code" / "go"
    program.write_text('#!/bin/sh\necho "$1|$2|$RANK"\n')
    program.chmod(0o755)
    assert case.run() == 0
    assert case.log() == ["a b|c|0"]


def test_a_script_that_was_not_sent_is_bad_input_and_the_folder_says_so(make: Make) -> None:
    case = make("", job={"script": "gone.py"})
    assert case.run() == 2
    assert case.ended["state"] == "failed"
    assert "gone.py" in case.ended["reason"]


def test_a_folder_without_a_plan_is_bad_input(make: Make) -> None:
    case = make("")
    (Path(case.url) / "plan.json").unlink()
    assert case.run() == 2
    assert "plan.json" in case.explain()


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_a_killed_rank_restarts_the_gang_under_the_next_attempt(make: Make) -> None:
    case = make(
        """
        print(f"attempt {ATTEMPT}")
        if ATTEMPT == 1:
            on_term()
            mark(f"up-{RANK}")
            wait()
        """,
        processes=2,
    )
    supervisor = case.start()
    pids = [case.marked(f"up-{rank}") for rank in (0, 1)]
    os.kill(pids[1], signal.SIGKILL)
    assert supervisor.ends() == 0, case.explain()
    assert case.log(0) == ["attempt 1", "attempt 2"]
    assert [event["number"] for event in case.events("attempt")] == [1, 2]
    record, _ = lease.read(case.folder.store)
    assert record is not None
    assert record.attempt == 2
    (restart,) = case.events("restart")
    assert restart["count"] == 1
    first = next(event for event in case.events("rank_exit") if event.get("first"))
    assert (first["rank"], first["code"], first["signal"]) == (1, 137, "SIGKILL")
    assert "rank 1 was killed" in restart["reason"]


def test_retries_are_counted_over_all_attempts_and_the_last_words_are_kept(make: Make) -> None:
    case = make(
        """
        control(progress={"step": ATTEMPT})
        for number in range(100):
            print("line", number)
        sys.exit("it broke")
        """,
        job={"retries": 1},
    )
    assert case.run() == 1
    assert len(case.events("restart")) == 1
    assert case.ended["state"] == "failed"
    assert "gave up after 1 retry" in case.ended["reason"]
    assert case.ended["lines"][-2:] == ["line 99", "it broke"]
    assert case.run() == 1  # a second start has no retries left
    assert len(case.events("restart")) == 1
    assert len(case.events("attempt")) == 3


def test_a_crash_that_repeats_at_the_same_step_is_given_up(make: Make) -> None:
    case = make('control(progress={"step": 1000}); raise ConnectionError("reset")', job={"retries": 100})
    assert case.run() == 1
    assert len(case.events("attempt")) == 3
    assert "the last 3 crashes were all at step 1000" in case.ended["reason"]


def test_an_unknown_failure_that_gets_no_further_is_retried_once_and_the_decisions_are_events(make: Make) -> None:
    case = make('control(progress={"step": 1000}); sys.exit(7)', job={"retries": 100})
    assert case.run() == 1
    assert len(case.events("attempt")) == 2
    first, second = case.events("fault")
    assert (first["class"], first["decision"]) == ("retry once", "retried in 0.05 s")
    assert (second["class"], second["decision"]) == ("retry once", "not retried")
    assert "for the second time" in second["reason"]


def test_a_missing_module_and_a_lack_of_permission_are_never_retried(make: Make) -> None:
    for number, (code, name) in enumerate(
        [("import no_such_module", "missing-module"), ('raise PermissionError(13, "Permission denied", "/data/x")',
                                                      "not-writable")]):  # fmt: skip
        case = make(code, name=f"run-{number}", job={"retries": 100})
        assert case.run() == 1
        (fault,) = case.events("fault")
        assert (fault["name"], fault["class"], fault["decision"]) == (name, "do not retry", "not retried")


def test_a_rule_of_the_job_decides_about_a_failure_of_its_own(make: Make) -> None:
    rule = {"match": "seat on (?P<host>\\S+) taken", "cause": "no seat on {host}", "fix": "ask", "retry": "never"}
    case = make('print("seat on lic1 taken"); sys.exit(9)', job={"retries": 100, "explain": [rule]})
    assert case.run() == 1
    (fault,) = case.events("fault")
    assert (fault["cause"], fault["fix"], fault["decision"]) == ("no seat on lic1", "ask", "not retried")


def test_a_crash_of_a_silent_rank_is_placed_by_the_step_of_the_others(make: Make) -> None:
    case = make(
        """
        on_term()
        if RANK == 0:
            control(progress={"step": 40 + ATTEMPT}); mark(f"said-{ATTEMPT}"); wait()
        wait(f"said-{ATTEMPT}")
        sys.exit(7 if ATTEMPT < 4 else 0)
        """,
        processes=2,
        job={"retries": 3},
    )
    supervisor = case.start(HEADWAY_TIMING=timing_with(case.env, halt=5))
    wait_until(lambda: len(case.events("attempt")) == 4, case.explain)
    assert [event["place"] for event in case.events("rank_exit") if event.get("first")] == [41, 42, 43]
    supervisor.send(signal.SIGTERM)
    assert supervisor.ends() == 143


def test_a_crash_that_moves_on_is_retried(make: Make) -> None:
    case = make('control(progress={"step": ATTEMPT}); sys.exit(7 if ATTEMPT < 5 else 0)', job={"retries": 100})
    assert case.run() == 0
    assert len(case.events("attempt")) == 5


def test_bad_input_of_a_rank_is_not_tried_again(make: Make) -> None:
    case = make("sys.exit(2)", job={"retries": 5})
    assert case.run() == 2
    assert len(case.events("attempt")) == 1
    assert case.ended["exit_code"] == 2


def test_a_rank_that_does_not_end_beside_a_failed_one_is_killed(make: Make) -> None:
    case = make(
        """
        if RANK == 0:
            wait("deaf"); sys.exit(5)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mark("deaf")
        wait()
        """,
        processes=2,
        job={"retries": 0},
    )
    assert case.run(HEADWAY_TIMING=timing_with(case.env, halt=0.3)) == 1
    assert case.ended["reason"].startswith("rank 0 exited with code 5")


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_run_can_be_started_again(make: Make, number: signal.Signals) -> None:
    case = make(
        """
        if ATTEMPT == 1:
            on_term(then=lambda: print("saved"))
            mark(f"up-{RANK}")
            wait()
        """,
        processes=2,
    )
    supervisor = case.start()
    for rank in (0, 1):
        case.marked(f"up-{rank}")
    supervisor.send(number)
    assert supervisor.ends() == 143, case.explain()
    assert case.ended["state"] == "stopped"
    assert case.log(1) == ["saved"]
    assert case.events("stop_asked")[0]["by"] == number.name
    assert case.run() == 0
    assert case.ended["state"] == "finished"


def test_a_rank_that_ignores_the_signal_is_killed_when_the_grace_period_ends(make: Make) -> None:
    case = make("signal.signal(signal.SIGTERM, signal.SIG_IGN); mark('up'); wait()", limits={"grace_s": 1.0})
    supervisor = case.start()
    pid = case.marked("up")
    supervisor.send(signal.SIGTERM)
    assert supervisor.ends() == 143
    assert not alive(pid)
    assert "rank 0 did not exit in time and was killed" in case.ended["reason"]


def test_a_second_signal_ends_at_once(make: Make) -> None:
    case = make(
        "on_term(then=lambda: (mark('asked'), time.sleep(3600))); mark('up'); wait()", limits={"grace_s": 3600.0}
    )
    supervisor = case.start()
    pid = case.marked("up")
    supervisor.send(signal.SIGTERM)
    case.marked("asked")

    def ended() -> bool:
        supervisor.send(signal.SIGTERM)
        return supervisor.process.poll() is not None

    wait_until(ended)
    assert supervisor.ends() == 143
    assert not alive(pid)
    assert case.ended["state"] == "stopped"


def test_signals_that_come_together_are_one_request(make: Make) -> None:
    case = make("on_term(then=lambda: (time.sleep(0.3), print('saved'))); mark('up'); wait()")
    supervisor = case.start()
    case.marked("up")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        supervisor.send(number)
    assert supervisor.ends() == 143
    assert case.log() == ["saved"]


def test_a_rank_that_was_told_to_stop_behind_our_back_stops_the_run(make: Make) -> None:
    case = make("on_term(); mark(f'up-{RANK}'); wait()", processes=2)
    supervisor = case.start(HEADWAY_TIMING=timing_with(case.env, halt=0.2))
    pids = [case.marked(f"up-{rank}") for rank in (0, 1)]
    os.kill(pids[1], signal.SIGTERM)
    assert supervisor.ends() == 143
    assert case.ended["state"] == "stopped"


def test_stop_json_in_the_folder_stops_the_run(make: Make) -> None:
    case = make("on_term(); mark('up'); wait()")
    supervisor = case.start()
    case.marked("up")
    case.folder.write_json(STOP, {"by": "ann", "reason": "enough"})
    assert supervisor.ends() == 143
    assert case.ended["state"] == "stopped"
    assert case.ended["reason"].startswith("ann enough")


def test_a_stop_that_was_asked_before_the_start_starts_nothing(make: Make) -> None:
    case = make("mark('up')")
    case.folder.write_json(STOP, {"by": "ann", "reason": ""})
    assert case.run() == 143
    assert case.ended["state"] == "stopped"
    assert not (case.tmp / "up").exists()


def test_a_stop_during_the_pause_before_a_restart_is_heeded(make: Make) -> None:
    case = make("mark('up'); sys.exit(1)")
    supervisor = case.start(HEADWAY_TIMING=timing_with(case.env, restart_pause=3600))
    wait_until(lambda: case.events("restart"), case.explain)
    supervisor.send(signal.SIGTERM)
    assert supervisor.ends() == 143
    assert case.ended["state"] == "stopped"


# -- nothing is left behind -------------------------------------------------------------------------------------------

BROOD = """
    # A loader process, and one that tries to get away from its group and its parent.
    loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    stay = f"open({str(HERE / 'escaped')!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    escape = ["-c", f"import os, time; os.setsid(); {stay}"]
    subprocess.Popen([sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, *{escape!r}])"])
    (HERE / "loader").write_text(str(loader.pid))
    mark("up")
"""


def test_nothing_outlives_a_supervisor_that_is_killed(make: Make) -> None:
    case = make(BROOD + "\n    wait()\n")
    supervisor = case.start()
    pids = [case.marked(name) for name in ("up", "loader", "escaped")]
    supervisor.process.kill()
    supervisor.ends()
    wait_until(lambda: not case.left_behind(), lambda: str(case.left_behind()))
    wait_until(lambda: not any(map(alive, pids)))
    wait_until(lambda: not list(case.tmp.glob("headway-worker-*")))
    assert case.folder.ended() is None


def test_a_child_without_a_label_does_not_outlive_a_killed_supervisor_either(make: Make) -> None:
    case = make("""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env={})
        (HERE / "child").write_text(str(child.pid))
        wait()
    """)
    supervisor = case.start()
    pid = case.marked("child")
    supervisor.process.kill()
    supervisor.ends()
    wait_until(lambda: not alive(pid))


def test_ranks_die_with_the_supervisor_even_if_all_its_helpers_were_killed_first(make: Make) -> None:
    case = make("mark('up'); wait()")
    supervisor = case.start()
    pid = case.marked("up")
    children = Path(f"/proc/{supervisor.process.pid}/task/{supervisor.process.pid}/children").read_text().split()
    (undertaker,) = (int(child) for child in children if int(child) != pid)
    os.kill(undertaker, signal.SIGKILL)
    supervisor.process.kill()
    supervisor.ends()
    wait_until(lambda: not alive(pid))
    assert len(list(case.tmp.glob("headway-worker-*"))) == 1
    second = case.start()
    wait_until(lambda: len(case.events("attempt")) == 2)
    assert len(list(case.tmp.glob("headway-worker-*"))) == 1  # the one of the dead is gone
    second.send(signal.SIGTERM)
    assert second.ends() == 143


def test_a_run_that_was_killed_is_taken_up_at_once_on_the_same_host(make: Make) -> None:
    case = make("print('attempt', ATTEMPT); mark('up'); wait('go')")
    supervisor = case.start()
    case.marked("up")
    supervisor.process.kill()
    supervisor.ends()
    case.mark("go")
    assert case.run() == 0
    assert case.ended["attempt"] == 2


def test_what_a_rank_leaves_running_is_ended_with_it(make: Make) -> None:
    case = make(BROOD + "\n    wait('escaped')\n    print('done')\n")
    assert case.run() == 0
    assert not any(alive(case.marked(name)) for name in ("loader", "escaped"))
    assert case.log() == ["done"]


@pytest.mark.slow
def test_orphans_of_the_ranks_are_buried(make: Make) -> None:
    case = make("""
        orphan = ["-c", "import os; open('%s', 'w').write(str(os.getpid()))" % (HERE / "orphan")]
        parent = f"import subprocess, sys; subprocess.Popen([sys.executable, *{orphan!r}])"
        subprocess.run([sys.executable, "-c", parent])
        wait("go")
    """)
    supervisor = case.start()
    pid = case.marked("orphan")
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    case.mark("go")
    assert supervisor.ends() == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of one's own needs root")
def test_as_process_1_it_heeds_signals_and_buries_orphans(make: Make) -> None:
    case = make("""
        orphan = ["-c", "import os; open('%s', 'w').write(str(os.getpid()))" % (HERE / "orphan")]
        parent = f"import subprocess, sys; subprocess.Popen([sys.executable, *{orphan!r}])"
        subprocess.run([sys.executable, "-c", parent])
        assert os.getppid() == 1
        on_term(then=lambda: print("saved"))
        wait("orphan")
        while Path("/proc", (HERE / "orphan").read_text()).exists():
            time.sleep(0.01)
        mark("up")
        wait()
    """)
    supervisor = case.start(["unshare", "--pid", "--fork", "--mount-proc"])
    case.marked("up")
    inner = Path(f"/proc/{supervisor.process.pid}/task/{supervisor.process.pid}/children").read_text()
    os.kill(int(inner), signal.SIGTERM)
    assert supervisor.ends() == 143, case.explain()
    assert case.log() == ["saved"]
    assert case.ended["state"] == "stopped"


# -- errors of our own ------------------------------------------------------------------------------------------------


def broken(case: Case, code: str) -> str:
    """A PYTHONPATH that puts a bug into the supervisor."""
    folder = case.tmp / "bug"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_bug_of_the_supervisor_leaves_no_rank_behind_and_is_told(make: Make) -> None:
    case = make("mark('up'); wait()")
    path = broken(
        case,
        """
import sys
if "--run" in sys.orig_argv:
    from headway.supervisor import coordinator
    from pathlib import Path
    import os, time
    start = coordinator.Coordinator._start
    def start_and_fail(self):
        start(self)
        while not Path(os.environ["TEST_DIR"], "up").exists():
            time.sleep(0.01)
        raise ZeroDivisionError("a bug")
    coordinator.Coordinator._start = start_and_fail
""",
    )
    assert case.run(PYTHONPATH=path) == 1
    assert not alive(case.marked("up"))
    assert case.ended["state"] == "failed"
    assert "ZeroDivisionError('a bug')" in case.ended["reason"]
    assert any("start_and_fail" in line.text for line in case.folder.log_lines(-1))


def test_a_bug_on_one_of_its_threads_ends_the_run_too(make: Make) -> None:
    case = make("mark('up'); wait()")
    path = broken(
        case,
        """
import sys
if "--run" in sys.orig_argv:
    from headway.supervisor import file_sync as mirror
    from pathlib import Path
    import os
    def sync(self, *, final=False):
        if Path(os.environ["TEST_DIR"], "up").exists():
            raise ZeroDivisionError("a bug")
    mirror.Mirror.sync = sync
""",
    )
    assert case.run(PYTHONPATH=path, HEADWAY_TIMING=timing_with(case.env, flush=1)) == 1
    assert not alive(case.marked("up"))
    assert "the mirror thread failed" in case.ended["reason"]


# -- budget -----------------------------------------------------------------------------------------------------------


def test_ranks_that_end_because_the_budget_is_nearly_spent_end_the_run(make: Make) -> None:
    case = make('control(event="budget")', limits={"budget_s": 500.0})
    assert case.run() == 0
    assert case.ended["state"] == "budget"


def test_ranks_that_overrun_the_budget_are_stopped(make: Make) -> None:
    case = make("on_term(then=lambda: print('saved')); wait()", limits={"budget_s": 1.5})
    assert case.run() == 0
    assert case.ended["state"] == "budget"
    assert case.log() == ["saved"]


@pytest.mark.slow
def test_the_grace_period_lies_inside_the_budget(make: Make) -> None:
    case = make(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); mark('up'); wait()",
        limits={"budget_s": 6.0, "grace_s": 60.0},
    )
    assert case.run() == 0, case.explain()
    assert case.ended["state"] == "budget"
    assert case.ended["spent_s"] < 9.0


def test_the_budget_is_a_total_over_attempts_also_of_killed_ones(make: Make) -> None:
    case = make("mark(f'up-{ATTEMPT}'); wait()", limits={"budget_s": 3600.0})
    supervisor = case.start()
    case.marked("up-1")

    def beats() -> int:
        record, _ = lease.read(case.folder.store)
        return record.beat if record else 0

    wait_until(lambda: beats() >= 3)
    supervisor.process.kill()
    supervisor.ends()
    spent = beats() * 0.3
    second = case.start()
    case.marked("up-2")
    second.send(signal.SIGTERM)
    assert second.ends() == 143
    assert case.events("attempt")[1]["held_from_s"] >= spent - 0.001


def test_a_budget_that_is_spent_already_starts_nothing(make: Make) -> None:
    case = make("mark('up')", limits={"budget_s": 0.0})
    assert case.run() == 0
    assert case.ended["state"] == "budget"
    assert not (case.tmp / "up").exists()


# -- the lease --------------------------------------------------------------------------------------------------------


def test_a_second_start_on_a_live_run_is_refused_and_disturbs_nothing(make: Make) -> None:
    case = make("mark('up'); wait('go')")
    first = case.start()
    case.marked("up")
    second = case.start()
    assert second.ends() == 2
    assert "this run is already running" in second.printed
    case.mark("go")
    assert first.ends() == 0
    assert len(case.events("attempt")) == 1


def test_a_supervisor_that_was_fenced_ends_its_ranks_and_writes_nothing_more(make: Make) -> None:
    case = make("mark('up'); print('mine'); wait()")
    supervisor = case.start()
    pid = case.marked("up")
    wait_until(lambda: case.events("attempt"))
    before = case.events()
    taken = {"attempt": 9, "holder": "else", "host": "far", "boot": "b", "pid": 1, "started": "1", "beat": 0}
    case.folder.write_json("lease.json", taken)
    assert supervisor.ends() == 1
    assert not alive(pid)
    assert case.events() == before
    assert case.folder.read_json("lease.json") == taken


def test_a_worker_that_is_restarted_after_the_end_does_nothing(make: Make) -> None:
    case = make("print('ran')")
    case.folder.write_json(SUBMISSION, {"attempts": [{"after": 0}]})
    assert case.run() == 0
    assert case.run() == 0
    assert case.log() == ["ran"]
    assert "has already ended" in case.explain()
    idle = case.start(HEADWAY_AFTER_END="idle")
    wait_until(lambda: "has already ended" in idle.printed)
    assert idle.process.poll() is None
    idle.send(signal.SIGTERM)
    assert idle.ends() == 0


def test_a_failed_run_that_is_submitted_again_runs_again(make: Make) -> None:
    case = make("sys.exit(0 if (HERE / 'mended').exists() else 3)", job={"retries": 0})
    case.folder.write_json(SUBMISSION, {"attempts": [{"after": 0}]})
    assert case.run() == 1
    assert case.run() == 1
    assert len(case.events("attempt")) == 1  # restarted by its place: still failed, not tried again
    case.mark("mended")
    case.folder.write_json(SUBMISSION, {"attempts": [{"after": 0}, {"after": 1}]})
    assert case.run() == 0
