"""What ranks print: every byte, in order, stamped and redacted, whatever the store does meanwhile."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.platform import timing_with
from headway.rundir.layout import segments
from tests.supervisor.supervised import Case, alive, cases
from tests.waiting import wait_until

Make = Callable[..., Case]
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


def raw(case: Case, writer: str = "r0") -> bytes:
    """A rank's segments, one after the other, without their stamps."""
    store = case.folder.store
    parts = [store.read(part.key) for part in segments(store, "logs") if part.writer == writer]
    lines = b"".join(parts).split(b"\n")
    assert lines.pop() == b""
    assert all(STAMP.match(line) for line in lines)
    return b"\n".join(STAMP.sub(b"", line, count=1) for line in lines) + b"\n"


def test_a_hundred_thousand_lines_arrive_complete_and_in_order_without_growing_memory(make: Make) -> None:
    case = make("""
        status = Path(f"/proc/{os.getppid()}/status")
        memory = lambda: int(next(line for line in status.read_text().splitlines() if "VmHWM" in line).split()[1])
        before = memory()
        for number in range(100_000):
            print(number, "x" * 100)
        (HERE / "grown").write_text(str(memory() - before))
    """)
    assert case.run() == 0
    expected = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(100_000))
    assert raw(case) == expected
    assert int((case.tmp / "grown").read_text()) < 32 * 1024  # of 11 MB printed and more in flight


def test_half_a_line_and_bytes_that_are_no_text_are_kept(make: Make) -> None:
    case = make(r"""
        os.write(1, b"caf\xe9 \xff\x00\xfe\n")
        os.write(2, b"to standard error\n")
        os.write(1, b"no newline at the end")
    """)
    assert case.run() == 0
    assert raw(case) == b"caf\xe9 \xff\x00\xfe\nto standard error\nno newline at the end\n"


def test_a_progress_bar_is_one_line_and_escape_codes_are_left_out(make: Make) -> None:
    case = make(r"""
        os.write(1, b"\x1b[31mred\x1b[0m\n")
        for percent in range(101):
            os.write(2, b"\r%3d%%|#| it/s" % percent)
        mark("moved")
        wait("go")
        os.write(1, b"\nwindows\r\n")
    """)
    supervisor = case.start()
    case.marked("moved")
    case.mark("go")
    assert supervisor.ends() == 0
    assert raw(case) == b"red\n100%|#| it/s\nwindows\n"


@pytest.mark.slow
def test_a_finished_bar_is_in_the_log_while_the_script_goes_on(make: Make) -> None:
    case = make(r"""
        os.write(2, b"\r 50%|#| it/s\r100%|#| it/s\n")
        wait("go")
    """)
    supervisor = case.start()
    wait_until(lambda: case.log() == ["100%|#| it/s"], case.explain)
    case.mark("go")
    assert supervisor.ends() == 0


def test_a_line_without_an_end_does_not_fill_the_memory(make: Make) -> None:
    case = make("os.write(1, b'y' * 300_000); print()")
    assert case.run() == 0
    assert raw(case).replace(b"\n", b"") == b"y" * 300_000


def test_what_a_killed_rank_printed_last_is_there(make: Make) -> None:
    case = make("print('last words'); os.kill(os.getpid(), 9)", job={"retries": 0})
    assert case.run() == 1
    assert case.log() == ["last words"]
    assert case.ended["lines"] == ["last words"]


def test_the_spool_holds_the_same_lines_at_once_and_the_supervisors_own(make: Make) -> None:
    case = make("print('hello'); wait('go')")
    spool = case.tmp / "spool"
    supervisor = case.start(HEADWAY_SPOOL=str(spool))
    wait_until(lambda: (spool / "a0001-r0.log").exists() and b"hello\n" in (spool / "a0001-r0.log").read_bytes())
    case.mark("go")
    assert supervisor.ends() == 0
    segment = case.folder.store.read("logs/a0001-r0-0000001.log")
    assert (spool / "a0001-r0.log").read_bytes() == segment
    assert any("1 process on this machine" in line.text for line in case.folder.log_lines(-1))
    assert "hello" not in supervisor.printed  # whoever chose the spool reads it there


def test_output_is_shown_with_its_rank_where_nobody_reads_a_spool(make: Make) -> None:
    case = make("print('hello')", processes=2)
    assert case.run() == 0
    assert "[rank 1] hello\n" in case.explain()


@pytest.mark.slow
def test_a_reader_of_standard_output_who_falls_asleep_stalls_nobody(make: Make, tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    case = make("for n in range(30_000): print('x' * 1000)")
    reader, writer = os.pipe()  # never read
    command = [sys.executable, "-m", "headway.runtime.worker", "--run", case.url]
    process = subprocess.Popen(command, env=case.env, cwd=tmp_path, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert process.wait(60) == 0
    os.close(reader)
    assert len(case.log()) == 30_000


def test_lines_that_a_killed_supervisor_had_on_disk_are_saved_by_the_next_one(make: Make) -> None:
    case = make("""
        for number in range(1000):
            print(ATTEMPT, number)
        mark("up")
        wait("go")
    """)
    spool = case.tmp / "spool"
    supervisor = case.start(HEADWAY_SPOOL=str(spool))
    case.marked("up")
    wait_until(lambda: b" 1 999\n" in (spool / "a0001-r0.log").read_bytes())
    supervisor.process.kill()
    supervisor.ends()
    case.mark("go")
    assert case.run(HEADWAY_SPOOL=str(spool)) == 0
    assert case.log() == [f"{attempt} {number}" for attempt in (1, 2) for number in range(1000)]


def test_secrets_reach_the_ranks_and_never_a_log(make: Make) -> None:
    secret, key = "s3cr3t-value-1234", "first line of a key\nsecond line of it"
    case = make(
        r"""
        value, path = os.environ["TOKEN"], Path(os.environ["KEY"])
        assert path.stat().st_mode & 0o77 == 0
        os.write(1, b"half " + value[:5].encode())
        time.sleep(0.05)
        os.write(1, value[5:].encode() + b"\n")
        print(path.read_text())
        control(event="note", text=value)
        sys.exit(f"failed with {value}")
        """,
        job={"secrets": {"TOKEN": {"ref": "env:OUTER"}, "KEY": {"ref": "env:OUTER_KEY", "as": "file"}}, "retries": 0},
    )
    assert case.run(OUTER=secret, OUTER_KEY=key) == 1
    assert case.log()[0] == "half ***"
    written = b"".join(path.read_bytes() for path in Path(case.url).rglob("*") if path.is_file())
    for hidden in (secret, "first line of a key", "second line of it"):
        assert hidden.encode() not in written
        assert hidden not in case.explain()


def test_credentials_that_ranks_inherit_never_reach_a_log(make: Make) -> None:
    case = make(
        "print(dict(os.environ))\nprint(os.environ['AWS_SECRET_ACCESS_KEY'].encode().hex())\nraise SystemExit(1)"
    )
    values = {"AWS_SECRET_ACCESS_KEY": "ambient/Secret+0123456789", "HF_TOKEN": "hf_ambientToken0123456789"}
    assert case.run(**values) == 1
    everything = b"".join(path.read_bytes() for path in case.tmp.rglob("*") if path.is_file())
    for value in values.values():
        assert value.encode() not in everything
        assert value.encode().hex().encode() not in everything


def test_a_secret_that_the_cluster_brought_is_hidden_too(make: Make) -> None:
    case = make("print(os.environ['TOKEN'])", job={"secrets": {"TOKEN": {"ref": "k8s://wandb/key"}}})
    assert case.run(TOKEN="from-the-cluster") == 0
    assert case.log() == ["***"]


def test_a_secret_that_cannot_be_had_is_bad_input_before_anything_starts(make: Make) -> None:
    case = make("mark('up')", job={"secrets": {"TOKEN": {"ref": "env:NOT_SET_ANYWHERE"}}})
    assert case.run() == 2
    assert "NOT_SET_ANYWHERE" in case.ended["reason"]
    assert not (case.tmp / "up").exists()


# -- a store that is down ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_goes_on_while_the_store_is_down_and_nothing_is_lost(make: Make) -> None:
    case = make("""
        mark("up")
        for number in range(1, 4):
            wait(f"go-{number}")
            print("line", number)
            control(event="note", number=number)
            mark(f"did-{number}")
    """)
    supervisor = case.start()
    pid = case.marked("up")
    wait_until(lambda: case.events("attempt"))
    run, away = Path(case.url), case.tmp / "away"
    case.mark("go-1")
    case.marked("did-1")
    run.rename(away)
    run.write_text("a file where a folder should be")
    case.mark("go-2")
    case.marked("did-2")
    wait_until(lambda: "the store is unreachable" in supervisor.printed)
    assert alive(pid)
    run.unlink()
    away.rename(run)
    wait_until(lambda: "the store is reachable again" in supervisor.printed)
    case.mark("go-3")
    assert supervisor.ends() == 0, case.explain()
    assert case.log() == ["line 1", "line 2", "line 3"]
    assert [event["number"] for event in case.events("note")] == [1, 2, 3]
    assert len(case.events("store_down")) == len(case.events("store_back")) == 1
    assert supervisor.printed.count("the store is unreachable") == 1


@pytest.mark.slow
def test_an_end_that_the_store_does_not_take_asks_to_be_started_again(make: Make) -> None:
    case = make("mark('up'); wait('go')")
    supervisor = case.start(HEADWAY_TIMING=timing_with(case.env, flush=0.5))
    case.marked("up")
    wait_until(lambda: case.events("attempt"))
    run, away = Path(case.url), case.tmp / "away"
    run.rename(away)
    run.write_text("")
    case.mark("go")
    assert supervisor.ends() == 143
    run.unlink()
    away.rename(run)
    assert case.folder.ended() is None
    assert case.run() == 0
    assert case.ended["state"] == "finished"


def test_a_stop_is_heeded_while_the_store_is_down(make: Make) -> None:
    case = make("on_term(); mark('up'); wait()", limits={"grace_s": 2.0})
    supervisor = case.start()
    pid = case.marked("up")
    run = Path(case.url)
    run.rename(case.tmp / "away")
    run.write_text("")
    supervisor.send(signal.SIGTERM)
    assert supervisor.ends() == 143
    assert not alive(pid)
