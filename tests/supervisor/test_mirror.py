"""What a script saves is in the run folder, whole files only, and is there again when it is started again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headway.core.errors import StoreError, Transient
from headway.storage import Store, open_store
from headway.supervisor import file_sync
from headway.supervisor.file_sync import Mirror, copy_folder
from headway.supervisor.node import Node
from tests.supervisor.supervised import Case, cases
from tests.waiting import wait_until


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    return open_store(f"memory://{tmp_path.name}/run")


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    root.mkdir()
    return root


def stored(store: Store) -> dict[str, bytes]:
    return {entry.key: store.read(entry.key) for entry in store.list("files/")}


def test_a_file_is_sent_once_it_has_stopped_changing(root: Path, store: Store) -> None:
    mirror = Mirror(root, store)
    (root / "a").write_text("1")
    assert mirror.sync() == 0
    (root / "a").write_text("12")
    assert mirror.sync() == 0
    assert mirror.sync() == 1
    assert stored(store) == {"files/a": b"12"}
    assert mirror.sync() == 0


def test_at_the_end_everything_is_sent(root: Path, store: Store) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "b").write_bytes(b"x" * (9 << 20))  # more than is read at once
    assert Mirror(root, store).sync(final=True) == 1
    assert stored(store) == {"files/sub/b": b"x" * (9 << 20)}


def test_a_file_that_looks_like_a_secret_is_saved_and_flagged_once(root: Path, store: Store) -> None:
    token = "h" + "f_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"
    lines: list[str] = []
    mirror = Mirror(root, store, log=lines.append)
    for text in (f"\ntoken: {token}\n", f"\ntoken: {token}\nagain\n"):
        (root / "config.yaml").write_text(text)
        mirror.sync(final=True)
        assert stored(store) == {"files/config.yaml": text.encode()}
    assert len(lines) == 1
    assert "'config.yaml': a Hugging Face token (line 2)" in lines[0]
    assert token not in lines[0]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_sent(root: Path, store: Store) -> None:
    mirror = Mirror(root, store)
    (root / "a").write_text("old")
    mirror.sync(final=True)
    times = ((root / "a").stat().st_atime_ns, (root / "a").stat().st_mtime_ns)
    (root / "new").write_text("new")
    os.utime(root / "new", ns=times)
    (root / "new").replace(root / "a")
    mirror.sync(final=True)
    assert stored(store) == {"files/a": b"new"}


def test_a_file_that_changes_while_it_is_sent_is_sent_again(root: Path, store: Store) -> None:
    big = root / "big"
    big.write_bytes(b"1" * (9 << 20))

    class Meddling:
        url = store.url

        def __init__(self) -> None:
            self.meddled = False

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, key: str, body: object, **more: object) -> str:
            version = store.write(key, body)  # type: ignore[arg-type]
            if not self.meddled:
                self.meddled = True
                big.write_bytes(b"2" * (9 << 20))
            return version

    mirror = Mirror(root, Meddling())  # type: ignore[arg-type]
    mirror.sync(final=True)
    assert mirror.sync(final=True) == 1
    assert stored(store) == {"files/big": b"2" * (9 << 20)}


def test_a_removed_file_is_removed_only_after_its_successor_was_sent(root: Path, store: Store) -> None:
    order: list[str] = []

    class Noting:
        url = store.url
        fails = True

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, key: str, body: object, **more: object) -> str:
            if key.endswith("2") and self.fails:
                raise Transient("busy")
            order.append(f"write {key}")
            return store.write(key, body)  # type: ignore[arg-type]

        def delete(self, key: str) -> None:
            order.append(f"delete {key}")
            store.delete(key)

    noting = Noting()
    mirror = Mirror(root, noting)  # type: ignore[arg-type]
    (root / "step-1").write_text("1")
    mirror.sync(final=True)
    (root / "step-2").write_text("2")
    (root / "step-1").unlink()
    with pytest.raises(Transient):
        mirror.sync(final=True)
    assert list(stored(store)) == ["files/step-1"]
    noting.fails = False
    mirror.sync(final=True)
    assert order == ["write files/step-1", "write files/step-2", "delete files/step-1"]


def test_a_folder_that_was_restored_is_not_sent_again(root: Path, store: Store) -> None:
    store.write("files/model/weights", b"w" * 100)
    store.write("files/empty", b"")
    mirror = Mirror(root, store)
    assert mirror.restore() == 2
    assert (root / "model" / "weights").read_bytes() == b"w" * 100
    assert mirror.sync(final=True) == 0
    (root / "model" / "weights").unlink()
    mirror.sync(final=True)
    assert list(stored(store)) == ["files/empty"]


def test_other_nodes_get_the_files_of_node_0_and_keep_their_own_apart(tmp_path: Path, store: Store) -> None:
    roots = [tmp_path / name for name in ("zero", "one", "one again")]
    for root in roots:
        root.mkdir()
    (roots[0] / "model").write_text("of node 0")
    Mirror(roots[0], store).sync(final=True)
    first = Mirror(roots[1], store, node=1)
    first.restore()
    (roots[1] / "cache").write_text("of node 1")
    (roots[1] / "model").write_text("changed on node 1")
    first.sync(final=True)
    assert stored(store)["files/model"] == b"of node 0"
    Mirror(roots[2], store, node=1).restore()
    assert (roots[2] / "cache").read_text() == "of node 1"
    assert (roots[2] / "model").read_text() == "changed on node 1"
    again = tmp_path / "zero again"
    again.mkdir()
    assert Mirror(again, store).restore() == 1


def test_links_are_followed_inside_the_folder_and_refused_outside_it(root: Path, store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "passwords").write_text("secret")
    (root / "step-5").write_text("5")
    (root / "last").symlink_to("step-5")
    (root / "out").symlink_to(tmp_path / "passwords")
    (root / "nowhere").symlink_to("gone")
    os.mkfifo(root / "pipe")
    mirror = Mirror(root, store, log=said.append)
    mirror.sync(final=True)
    mirror.sync(final=True)
    assert stored(store) == {"files/step-5": b"5", "files/last": b"5"}
    assert len(said) == 1
    assert "out" in said[0]


def test_a_name_that_no_store_takes_is_said_once_and_does_not_stop_the_others(root: Path, store: Store) -> None:
    said: list[str] = []
    (root / "back\\slash").write_text("1")
    (root / "fine").write_text("2")
    mirror = Mirror(root, store, log=said.append)
    for _ in range(2):
        mirror.sync(final=True)
    assert stored(store) == {"files/fine": b"2"}
    assert len(said) == 1


def test_a_file_that_the_store_will_not_have_does_not_stop_the_others(root: Path, store: Store) -> None:
    said: list[str] = []

    class Picky:
        url = store.url

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, key: str, body: object, **more: object) -> str:
            if key.endswith("odd"):
                raise StoreError("that name is too long for me")
            return store.write(key, body)  # type: ignore[arg-type]

    (root / "odd").write_text("1")
    (root / "plain").write_text("2")
    mirror = Mirror(root, Picky(), log=said.append)  # type: ignore[arg-type]
    mirror.sync(final=True)
    assert stored(store) == {"files/plain": b"2"}
    assert said == ["not saved: 'odd': that name is too long for me"]


def test_a_script_that_writes_and_removes_all_the_time_never_breaks_the_mirror(root: Path, store: Store) -> None:
    mirror, stop = Mirror(root, store), threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (root / f"f{number % 7}").write_bytes(b"z" * number)
            (root / f"f{(number + 3) % 7}").unlink(missing_ok=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(100):
            mirror.sync(final=True)
    finally:
        stop.set()
        thread.join()
    mirror.sync(final=True)
    assert stored(store) == {f"files/{path.name}": path.read_bytes() for path in root.iterdir()}


def test_the_copy_to_resume_from_is_apart_from_the_folder(tmp_path: Path, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a").write_text("1")
    (root / "dangling").symlink_to("gone")
    copy_folder(root, tmp_path / "resume")
    (root / "sub" / "a").write_text("2")
    assert (tmp_path / "resume" / "sub" / "a").read_text() == "1"
    (root / "sub" / "a").unlink()
    copy_folder(root, tmp_path / "resume")
    assert not (tmp_path / "resume" / "sub" / "a").exists()


# -- with a supervisor ------------------------------------------------------------------------------------------------

Make = Callable[..., Case]


@pytest.fixture(name="make")
def _make(tmp_path: Path) -> Iterator[Make]:
    yield from cases(tmp_path)


SCRIPT = """
    run, resume = (Path(os.environ[name]) for name in ("HEADWAY_RUN_DIR", "HEADWAY_RESUME_DIR"))
    saved = resume / "state.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    assert saved.exists() == (run / "state.json").exists()
    print("from step", step)
    (run / "state.json").write_text(json.dumps({"step": step + 1}))
    (run / "ckpt").mkdir(exist_ok=True)
    (run / "ckpt" / str(step + 1)).write_bytes(b"weights")
"""


def test_a_script_of_any_framework_goes_on_from_what_it_saved_after_a_crash(make: Make) -> None:
    case = make(SCRIPT + "\n    os.kill(os.getpid(), 9) if step < 2 else None\n")
    assert case.run() == 0
    assert case.log() == ["from step 0", "from step 1", "from step 2"]
    assert case.folder.store.read("files/state.json") == b'{"step": 3}'


def test_a_script_of_any_framework_goes_on_from_what_was_mirrored_when_its_machine_is_lost(make: Make) -> None:
    case = make(SCRIPT + "\n    mark('up'); wait('go')\n")
    supervisor = case.start()
    case.marked("up")
    wait_until(lambda: len(list(case.folder.store.list("files/"))) == 2, case.explain)
    supervisor.process.kill()
    supervisor.ends()
    case.mark("go")
    assert case.run() == 0
    assert case.log()[-1] == "from step 1"
    assert sorted(entry.key for entry in case.folder.store.list("files/ckpt/")) == ["files/ckpt/1", "files/ckpt/2"]
    assert not list(case.tmp.glob("headway-worker-*"))


def test_a_file_that_is_open_for_writing_is_not_taken_until_it_is_closed(root: Path, store: Store) -> None:
    import subprocess
    import sys

    mirror = Mirror(root, store)
    hold = "import sys; f = open(sys.argv[1], 'w'); f.write('half'); f.flush(); print(flush=True); input(); f.close()"
    words = [sys.executable, "-c", hold]
    with (
        subprocess.Popen([*words, str(root / "model.pt")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer,
        subprocess.Popen([*words, str(root / "train.log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as logger,
    ):
        for process in (writer, logger):
            assert process.stdout is not None
            process.stdout.readline()
        mirror.sync()
        assert mirror.sync() == 1
        assert stored(store) == {"files/train.log": b"half"}, "of a log, any beginning is useful"
        writer.communicate(b"\n")
        logger.communicate(b"\n")
    mirror.sync()
    mirror.sync()
    assert stored(store) == {"files/model.pt": b"half", "files/train.log": b"half"}


def test_a_file_that_is_held_open_for_ever_is_taken_once_it_is_quiet(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(root, store)
    (root / "run.wandb").write_text("records")
    inode = (root / "run.wandb").stat().st_ino
    monkeypatch.setattr(file_sync, "open_for_writing", lambda folder: {inode})
    assert [mirror.sync() for _ in range(file_sync.QUIET_SCANS + 1)] == [0] * file_sync.QUIET_SCANS + [1]


def test_a_log_that_never_stops_growing_is_taken_now_and_then(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(root, store)
    monkeypatch.setattr(file_sync, "LOG_INTERVAL_S", 0.0)
    for count in (1, 2, 3):
        (root / "train.log").write_text("line\n" * count)
        (root / "state.bin").write_text("x" * count)
        mirror.sync()
    assert stored(store) == {"files/train.log": b"line\n" * 3}


class Waiting:
    """As much of a node as waits for its last files."""

    stop_at: float | None = None
    ranks_grace_s = 0.2

    def __init__(self, done_after: int, *, failing: bool = False, alive: bool = True) -> None:
        self.said: list[str] = []
        self._done: set[str] = set()
        self._waits, self._done_after = 0, done_after
        self.health = SimpleNamespace(is_failing=lambda name: failing)
        self.mirror_thread = SimpleNamespace(finish=lambda: None, is_alive=lambda: alive)

    def log(self, text: str) -> None:
        self.said.append(text)

    def _asked_since(self, before: bool) -> bool:
        return self.stop_at is not None and not before

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        self._waits += 1
        if self._waits >= self._done_after:
            self._done.add("mirror")
        return done()


def test_a_store_that_takes_the_last_files_slowly_gets_all_of_them() -> None:
    slow, down = Waiting(done_after=4), Waiting(done_after=4, failing=True)
    assert Node.finish_files(cast(Node, slow), 120.0)
    assert slow.said == ["still saving the program's files"] * 3
    assert not Node.finish_files(cast(Node, down), 120.0), "a store that is down is not waited for without end"
    assert not Node.finish_files(cast(Node, Waiting(done_after=4, alive=False)), 120.0), "nor a thread that has died"
