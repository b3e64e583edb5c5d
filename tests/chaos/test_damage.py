"""A run folder that was damaged, or cannot be read or written as it should: runs go on exactly, or say why they cannot.

Real ranks train, are stopped, and find it hurt. What needs no training is tried in tests/training/test_restore.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import Denied, NoCheckpoint
from headway.spec import Cadence, Checkpoint, Job, dump
from headway.storage import open_store
from headway.storage.base import TEMPORARY_PREFIX
from headway.storage.local import FolderStore
from headway.training.checkpoint import manager
from tests.supervisor import supervised
from tests.training.inside import Start, runs
from tests.training.live import Case
from tests.training.test_run import parts, train

RULE = Checkpoint(every=Cadence(steps=3), keep_last=9)
NEWEST, BEFORE = 8, 6  # steps of the two newest checkpoints of a run that was stopped at step 8
SHORT = {"epochs": 2}
QUICK = json.dumps({"stale_for_s": 0.2})  # what is missing is not waited for as long as a slow store would need


@pytest.fixture(scope="module", name="straight")
def _straight(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = Case(tmp_path_factory.mktemp("straight"), config=SHORT, checkpoint=RULE)
    assert case.train() == [0], case.log()
    return case


@pytest.fixture(scope="module", name="stopped")
def _stopped(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = Case(tmp_path_factory.mktemp("stopped"), config=SHORT, checkpoint=RULE)
    assert case.train(TEST_OPTIONS=json.dumps({"term_at": NEWEST - 1})) == [143], case.log()
    return case


@pytest.fixture(name="case")
def _case(tmp_path: Path, stopped: Case) -> Case:
    """A copy of the stopped run, to be hurt."""
    shutil.copytree(stopped.url, tmp_path / "run")
    return Case(tmp_path, config=SHORT, checkpoint=RULE, attempt=1, claimed=True)


def newest(case: Case) -> Path:
    return Path(case.url, "checkpoints", f"{NEWEST:08d}")


def assert_goes_on_exactly(case: Case, straight: Case, *, from_step: int) -> None:
    assert case.train(TEST_OPTIONS=QUICK) == [0], case.log()
    assert f"resuming from step {from_step}," in case.log()
    assert case.digest() == straight.digest()
    assert case.history() == straight.history()


# -- damage -----------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 3] ^= 16
    path.write_bytes(bytes(body))


def swap(path: Path) -> None:
    """With the file of the same kind of the one before."""
    kind = path.name.rpartition("-")[2]
    (other,) = (path.parents[1] / f"{BEFORE:08d}").glob(f"*{kind}")
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("hurt", [truncate, flip, Path.unlink, swap], ids=["cut", "flipped", "removed", "swapped"])
@pytest.mark.parametrize("name", ["a0001-r0.safetensors", "a0001-state.json", "manifest.json"])
def test_a_hurt_file_is_named_and_the_run_ends_with_the_same_bits(
    case: Case, straight: Case, name: str, hurt: Callable[[Path], None]
) -> None:
    hurt(newest(case) / name)
    assert_goes_on_exactly(case, straight, from_step=BEFORE)
    assert f"the checkpoint of step {NEWEST} is damaged and was skipped" in case.log()
    assert name in case.log()


def test_a_manifest_without_its_files_is_damage(case: Case, straight: Case) -> None:
    for path in newest(case).glob("a0001-*"):
        path.unlink()
    assert_goes_on_exactly(case, straight, from_step=BEFORE)
    assert f"the checkpoint of step {NEWEST} is damaged and was skipped" in case.log()


def test_files_that_were_never_committed_are_no_damage(case: Case, straight: Case) -> None:
    """A kill between the parts and the manifest: nobody was promised anything."""
    ahead = Path(case.url, "checkpoints", "00000009")
    shutil.copytree(newest(case), ahead)
    (ahead / "manifest.json").unlink()
    assert_goes_on_exactly(case, straight, from_step=NEWEST)
    assert "damaged" not in case.log()


def test_where_every_checkpoint_is_hurt_nothing_is_begun_again(case: Case) -> None:
    for path in Path(case.url, "checkpoints").glob("*/manifest.json"):
        flip(path)
    assert case.train(TEST_OPTIONS=QUICK) == [1]
    assert "none can be read" in case.log()
    assert "starting at step 0" not in case.log()


# -- a folder that does not show what it has --------------------------------------------------------------------------


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    yield from runs(tmp_path, monkeypatch)


@pytest.fixture(name="list_as")
def _list_as(start: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], Any]:
    """A run with checkpoints; its next attempt, whose store lists as told."""
    run = start(checkpoint=Checkpoint(every=Cadence(steps=2)))
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    train(run, model, optimizer, feed, epochs=1)
    run._checkpoints.writer.drain()
    run._session.control.event("checkpoint", step=4)

    def again(listing: Callable[..., Any]) -> int:
        following = start(checkpoint=Checkpoint(every=Cadence(steps=2)))
        real = FolderStore.list
        monkeypatch.setattr(FolderStore, "list", lambda self, prefix="": listing(lambda: real(self, prefix), prefix))
        model, optimizer, feed = parts(following)
        return following.restore(model=model, optimizer=optimizer, data=feed)

    return again


def test_a_listing_that_is_denied_ends_the_attempt_and_begins_nothing(list_as: Callable[..., int]) -> None:
    def denied(real: Callable[[], Any], prefix: str) -> Any:
        if prefix.startswith("checkpoints"):
            raise Denied("403")
        return real()

    with pytest.raises(Denied):
        list_as(denied)


def test_a_listing_that_is_behind_loses_no_checkpoint(list_as: Callable[..., int]) -> None:
    def stale(real: Callable[[], Any], prefix: str) -> Any:
        return iter(()) if prefix.startswith("checkpoints") else real()

    assert list_as(stale) == 4


# -- a disk that is full, or cannot be written ------------------------------------------------------------------------

HERE = Path(__file__).resolve().parents[2]


def in_a_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A shell that may mount what it likes; nobody else sees it."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives no mount namespaces")
    command = ["unshare", "-rm", "sh", "-e", "-c", script, "sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=HERE, check=False)


def unshare_is_there() -> bool:
    return shutil.which("unshare") is not None


FULL = """
import json, os, sys
os.environ["TEST_OPTIONS"] = "{}"
from pathlib import Path
from tests.training.live import Case
from tests.chaos.test_damage import RULE, SHORT
disk, out = Path(sys.argv[1]), Path(sys.argv[2])
if __name__ == "__main__":
    case = Case(out, url=str(disk / "run"), config={**SHORT, "pause_s": 0.05}, checkpoint=RULE)
    ballast = disk / "ballast"
    gang = case.start()
    begun = out / "begun-1-0"
    import time
    while not begun.exists():
        time.sleep(0.01)
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    while "does not respond" not in case.log():
        assert gang.processes[0].is_alive(), case.log()
        time.sleep(0.01)
    ballast.unlink()
    assert gang.wait() == [0], case.log()
    assert "responds again" in case.log()
    print(case.digest(), json.dumps(sorted(case.history())))
"""


@pytest.mark.slow
@pytest.mark.skipif(not unshare_is_there(), reason="unshare is not installed")
def test_a_disk_that_is_full_for_a_while_costs_nothing_but_a_word(tmp_path: Path, straight: Case) -> None:
    (tmp_path / "full.py").write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=2m tmpfs "$1"; PYTHONPATH=. exec "$4" "$2" "$1" "$3"'
    done = in_a_namespace(mount, str(disk), str(tmp_path / "full.py"), str(tmp_path / "out"), sys.executable)
    assert done.returncode == 0, done.stderr
    digest, steps = done.stdout.split(" ", 1)
    assert digest == straight.digest()
    assert json.loads(steps) == sorted(straight.history())


@pytest.mark.skipif(not unshare_is_there(), reason="unshare is not installed")
def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    case = supervised.make_case(tmp_path, 'mark("began")')
    mount = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; exec "$2" -m headway.runtime.worker --run "$1"'
    done = in_a_namespace(f"export HEADWAY_TIMING=renew=0.2; {mount}", case.url, sys.executable)
    assert done.returncode == 1, done.stderr
    told = done.stdout + done.stderr
    assert "Read-only file system" in told
    assert "fix:" in told
    assert not (tmp_path / "began").exists()


# -- clocks, and two at once ------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_back_changes_nothing(tmp_path: Path, straight: Case) -> None:
    case = Case(tmp_path, config=SHORT, checkpoint=RULE)
    assert case.train(TEST_OPTIONS=json.dumps({"clock_back_at": 2, "term_at": 9})) == [143]
    assert_goes_on_exactly(case, straight, from_step=10)
    assert case.attempt == 2


TRAIN = """
sys.path.insert(0, os.environ["TEST_ROOT"])
from tests.training import training
training.main({})
"""


@pytest.mark.slow
def test_of_two_runs_started_at_once_on_one_folder_one_trains(tmp_path: Path, straight: Case) -> None:
    job = dump(Job(name="t", script="train.py", config=SHORT, seed=7, checkpoint=RULE))
    case = supervised.make_case(tmp_path, TRAIN, job=job, environment={"threads": "1"})
    case.env |= {"TEST_ROOT": str(HERE), "OMP_NUM_THREADS": "1"}
    both = [case.start(), case.start()]
    assert sorted(one.ends() for one in both) == [0, 2], case.explain()
    loser = next(one for one in both if one.ends() == 2)
    assert "attempt 1" in loser.printed
    assert "fix:" in loser.printed
    read = Case(tmp_path, url=case.url, claimed=True)
    assert read.digest() == straight.digest()
    assert read.history() == straight.history()
    assert len(case.events("attempt")) == 1
    case.clean_up()


# -- what a killed writer leaves --------------------------------------------------------------------------------------


def test_what_a_killed_writer_had_begun_is_swept_when_it_is_old(tmp_path: Path) -> None:
    import os
    import time

    store = open_store(str(tmp_path))
    store.write("checkpoints/00000001/manifest.json", b"{}")
    old, young = (tmp_path / "checkpoints/00000001" / f"{TEMPORARY_PREFIX}{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * manager.STALE_S,) * 2)
    assert manager.remove_stale_files(store) == 1
    assert (old.exists(), young.exists()) == (False, True)
    assert [entry.key for entry in store.list()] == ["checkpoints/00000001/manifest.json"]


def test_a_run_whose_record_and_files_vanished_does_not_begin_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    model, optimizer, feed = parts(run)
    run.restore(model=model, optimizer=optimizer, data=feed)
    train(run, model, optimizer, feed, epochs=1)
    run._checkpoints.writer.drain()
    store = open_store(run.folder)
    store.write("events/a0001-0000001.jsonl", b'{"kind": "checkpoint", "step": 4}\n')
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    following = start()
    model, optimizer, feed = parts(following)
    with pytest.raises(NoCheckpoint, match="no checkpoint is left"):
        following.restore(model=model, optimizer=optimizer, data=feed)
