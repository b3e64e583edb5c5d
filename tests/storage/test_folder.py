"""What a folder promises beyond the contract: nothing is lost by a crash, a full disk, a clock or another process."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import Conflict, Denied, DiskFull, HeadwayError, NotThere, StoreError, Transient
from headway.storage import ABSENT, fetch_file, open_store
from headway.storage.base import LOCK_FILE, TEMPORARY_PREFIX
from headway.storage.local import FolderStore
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "runs")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# ── disks ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("when", [None, "version"])
def test_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path, as_file: bool, when: str | None) -> None:
    store = FolderStore(small_disk)
    version = store.write("lease.json", b"before")
    body: bytes | Path = bytes(2 << 20)
    if as_file:
        (tmp_path / "large").write_bytes(bytes(2 << 20))
        body = tmp_path / "large"
    with pytest.raises(DiskFull, match="its previous content is unchanged"):
        store.write("lease.json", body, when=version if when else None)
    assert store.read("lease.json") == b"before"
    assert [name for name in files_below(small_disk) if TEMPORARY_PREFIX in name] == []
    store.write("small", b"there is room for this")


def test_a_file_fetched_to_a_full_disk_leaves_nothing(small_disk: Path) -> None:
    source = open_store("memory://large")
    source.write("large", bytes(2 << 20))
    with pytest.raises(DiskFull):
        fetch_file(source, "large", small_disk / "file")
    assert files_below(small_disk) == []


def test_a_disk_that_fails_when_it_is_synced_is_an_error_and_not_a_write(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("k", b"before")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(Transient):
            store.write("k", b"after")
    assert store.read("k") == b"before"
    assert files_below(store.root) == ["k"]


def test_a_read_only_disk_is_denied_with_what_to_do(small_disk: Path) -> None:
    store = FolderStore(small_disk)
    version = store.write("k", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in (
        lambda: store.write("k", b"y"),
        lambda: store.write("k", b"y", when=version),
        lambda: store.write("new", b"y", when=ABSENT),
        lambda: store.delete("k"),
    ):
        with pytest.raises(Denied, match="choose another folder"):
            write()
    assert store.read("k") == b"x"


def test_a_folder_that_may_not_be_read_or_written_is_denied(store: FolderStore) -> None:
    store.write("closed/k", b"x")
    (store.root / "closed").chmod(0)
    try:
        said = as_somebody_else(
            lambda: store.read("closed/k"),
            lambda: store.stat("closed/k"),
            lambda: list(store.list()),
            lambda: store.write("closed/new", b"x"),
            lambda: store.write("top", b"x"),
        )
    finally:
        (store.root / "closed").chmod(0o755)
    assert [kind for kind, _ in said] == ["Denied"] * 5
    assert all("fix: chmod or chown" in text for _, text in said)


# ── crashes ──────────────────────────────────────────────────────────────────


def test_a_writer_killed_in_the_middle_leaves_the_old_object_and_no_visible_rest(
    store: FolderStore, tmp_path: Path
) -> None:
    store.write("model.bin", b"old and whole")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # a file that never ends: the writer waits in the middle of it
    script = "import sys; from pathlib import Path; from headway.storage.local import FolderStore\n"
    script += "FolderStore(Path(sys.argv[1])).write('model.bin', Path(sys.argv[2]))"
    writer = subprocess.Popen([sys.executable, "-c", script, str(store.root), str(pipe)])
    with pipe.open("wb", buffering=0) as feed:
        feed.write(b"new but" * 100_000)
        wait_until(lambda: any(TEMPORARY_PREFIX in name for name in files_below(store.root)), "the writer has begun")
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert store.read("model.bin") == b"old and whole"
    assert [entry.key for entry in store.list()] == ["model.bin"]
    assert len(files_below(store.root)) == 2  # the rest lies there, and is shown to nobody


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_answer(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("folder/k", b"x")
    happened: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            kind = "directory" if name == "sync" and os.path.isdir(f"/proc/self/fd/{given[0]}") else "file"
            happened.append(f"sync {kind}" if name == "sync" else name)
            return call(*given, **named)

        return noted

    monkeypatch.setattr(os, "fsync", noting("sync", os.fsync))
    monkeypatch.setattr(os, "replace", noting("rename", os.replace))
    monkeypatch.setattr(os, "link", noting("link", os.link))
    store.write("folder/k", b"y")
    assert happened == ["sync file", "rename", "sync directory"]
    happened.clear()
    store.write("folder/new", b"y", when=ABSENT)
    assert happened == ["sync file", "link", "sync directory"]


def test_names_that_belong_to_the_store_cannot_be_taken(store: FolderStore) -> None:
    for name in (f"{TEMPORARY_PREFIX}1", LOCK_FILE, f"folder/{LOCK_FILE}"):
        with pytest.raises(StoreError, match="are reserved"):
            store.write(name, b"x")


# ── versions ─────────────────────────────────────────────────────────────────


def test_the_same_bytes_written_again_are_another_version(store: FolderStore) -> None:
    versions = [store.write("beat", b"alive") for _ in range(50)]
    assert len(set(versions)) == 50


def test_versions_differ_although_the_clock_is_set_back(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([2_000_000_000_000_000_000, 1_000_000_000_000_000_000, 1_000_000_000_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    versions = [store.write("beat", b"alive") for _ in range(3)]
    assert len(set(versions)) == 3


def test_versions_differ_where_times_are_coarse(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    set_time = os.utime

    def coarsely(path: Path, *, ns: tuple[int, int]) -> None:
        set_time(path, ns=(ns[0], ns[1] // 2_000_000_000 * 2_000_000_000))

    monkeypatch.setattr(os, "utime", coarsely)
    version = store.write("beat", b"0")
    for number in range(1, 5):
        after = store.write("beat", str(number).encode(), when=version)
        assert after != version
        assert store.stat("beat").version == after
        version = after


# ── other processes ──────────────────────────────────────────────────────────


def test_no_update_is_lost_between_processes(store: FolderStore) -> None:
    store.write("counter", b"0")
    script = """
import sys
from pathlib import Path
from headway.core.errors import Conflict
from headway.storage.local import FolderStore
store, done = FolderStore(Path(sys.argv[1])), 0
while done < 25:
    version = store.stat("counter").version
    value = int(store.read("counter"))
    try:
        store.write("counter", str(value + 1).encode(), when=version)
    except Conflict:
        continue
    done += 1
"""
    counting = [subprocess.Popen([sys.executable, "-c", script, str(store.root)]) for _ in range(4)]
    assert [process.wait() for process in counting] == [0, 0, 0, 0]
    assert store.read("counter") == b"100"


def test_an_answer_that_nfs_lost_is_not_a_conflict(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server made the link; its answer was lost, and the repeated request found the name taken: by ourselves."""
    link = os.link

    def linked_and_lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", linked_and_lost)
    store.write("claim", b"mine", when=ABSENT)
    assert store.read("claim") == b"mine"


def test_creating_is_exclusive_without_hard_links_too(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", unsupported)
    store.write("claim", b"first", when=ABSENT)
    with pytest.raises(Conflict):
        store.write("claim", b"second", when=ABSENT)
    assert store.read("claim") == b"first"
    assert [entry.key for entry in store.list()] == ["claim"]


def test_a_file_system_without_locks_is_refused_by_name(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    version = store.write("lease.json", b"x")

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(StoreError, match="no locks"):
        store.write("lease.json", b"y", when=version)
    assert store.read("lease.json") == b"x"


def test_an_object_deleted_while_it_is_listed_is_left_out(store: FolderStore) -> None:
    for name in ("a/1", "b/1", "c/1"):
        store.write(name, b"")
    listing = store.list()
    assert next(listing).key == "a/1"
    (store.root / "b" / "1").unlink()
    (store.root / "b").rmdir()
    assert [entry.key for entry in listing] == ["c/1"]


@given(st.sets(st.text("a-/0.é", min_size=1, max_size=6), max_size=12), st.text("a-/0", max_size=3))
def test_a_folder_lists_as_an_object_store_does(names: set[str], prefix: str) -> None:
    """Any names, any prefix: the same keys in the same order as where there are no folders at all."""
    with tempfile.TemporaryDirectory() as root:
        folder, flat = FolderStore(Path(root)), open_store(f"memory://{uuid.uuid4().hex}")
        for name in sorted(names, key=len, reverse=True):
            with suppress(StoreError):  # no key, or a file where a folder is
                folder.write(name, b"")
                flat.write(name, b"")
        try:
            expected = [entry.key for entry in flat.list(prefix)]
        except StoreError:
            with pytest.raises(StoreError):
                list(folder.list(prefix))
        else:
            assert [entry.key for entry in folder.list(prefix)] == expected


# ── what else may lie in a folder ────────────────────────────────────────────


def test_links_in_circles_are_not_followed(store: FolderStore) -> None:
    store.write("a/k", b"")
    (store.root / "a" / "loop").symlink_to(store.root)
    (store.root / "nowhere").symlink_to("gone")
    assert [entry.key for entry in store.list()] == ["a/k"]


def test_files_whose_names_no_key_can_have_are_not_listed(store: FolderStore) -> None:
    """What is listed can be read: a name that is not Unicode, or that another store would change, cannot."""
    store.write("k", b"")
    for name in (b"latin-1 \xe9", b"line\nbreak", b"back\\slash"):
        Path(os.fsdecode(os.path.join(os.fsencode(store.root), name))).write_bytes(b"")
    assert [entry.key for entry in store.list()] == ["k"]


def test_a_folder_and_a_file_of_one_name_are_an_error_with_a_reason(store: FolderStore) -> None:
    store.write("a/b", b"")
    with pytest.raises(StoreError, match="cannot have the same name"):
        store.write("a", b"")
    with pytest.raises(StoreError, match="cannot have the same name"):
        store.write("a/b/c", b"")
    store.delete("a")  # there is no such object
    assert store.read("a/b") == b""


def test_a_pipe_is_no_object_and_does_not_block(store: FolderStore) -> None:
    store.write("k", b"")
    os.mkfifo(store.root / "pipe")
    with pytest.raises(NotThere):
        store.stat("pipe")
    assert [entry.key for entry in store.list()] == ["k"]


def test_a_name_that_is_too_long_is_an_error_of_ours(store: FolderStore) -> None:
    with pytest.raises(StoreError, match="too long"):
        store.write("x" * 300, b"")


def as_somebody_else(*calls: Callable[[], object]) -> list[tuple[str, str]]:
    """What each call raises for a user who is not root: its kind and its words."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(PermissionError):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        said = []
        for call in calls:
            try:
                call()
                said.append("nothing\x1f")
            except HeadwayError as error:
                said.append(f"{type(error).__name__}\x1f{error}")
        os.write(writing, "\x1e".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return [(part.split("\x1f")[0], part.split("\x1f")[1]) for part in text.split("\x1e")]
