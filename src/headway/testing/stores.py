"""What every store promises. Each test file inherits this and gives a `reopen`: the same place, opened anew."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.core.errors import Conflict, NotThere, StoreError
from headway.storage import (
    ABSENT,
    Store,
    fetch_file,
    join,
    open_store,
    require_conditional_put,
    send_file,
    subfolders,
)

WRITERS = 8
LARGE = (17 << 20) + 4321  # three parts on every object store, the last one odd

BAD_KEYS = ["", "/etc/passwd", "../up", "a/../../up", "a/./b", "a//b", "a/", "nul\0", "line\nbreak", "back\\slash"]
ODD_NAMES = [" a b ", "%41", "ünïcode 日本 🚀", "#?&=+;,", "~*'\"!$()", "{[<|>]}", ".hidden", "a:b@c", "x" * 200]


class StoreContract:
    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Store:
        return reopen()

    # ── writing and reading ──────────────────────────────────────────────────

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_what_is_written_is_read_back(self, store: Store, kind: Callable[[bytes], bytes]) -> None:
        store.write("a/b/c.bin", kind(b"\x00\xff some bytes"))
        assert store.read("a/b/c.bin") == b"\x00\xff some bytes"
        assert store.stat("a/b/c.bin").size == 13

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.write("empty", b"")
        assert store.read("empty") == b""
        assert store.read("empty", (0, 10)) == b""
        assert [entry.size for entry in store.list()] == [0]

    def test_a_file_is_stored_as_it_is(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "small"
        path.write_bytes(b"from a file")
        store.write("small", path)
        assert store.read("small") == b"from a file"

    def test_a_large_file_goes_and_comes_in_parts_and_is_the_same(self, store: Store, tmp_path: Path) -> None:
        content = os.urandom(LARGE)
        path = tmp_path / "large"
        path.write_bytes(content)
        version = store.write("large", path)
        assert store.stat("large").version == version
        assert store.read("large") == content
        assert store.read("large", (5, LARGE - 5)) == content[5:-5]

    def test_a_file_that_cannot_be_read_leaves_the_object_as_it_was(self, store: Store, tmp_path: Path) -> None:
        store.write("kept", b"before")
        with pytest.raises(StoreError, match="cannot be read"):
            store.write("kept", tmp_path / "no such file")
        assert store.read("kept") == b"before"

    def test_the_last_write_wins(self, store: Store) -> None:
        store.write("k", b"a longer first text")
        store.write("k", b"second")
        assert store.read("k") == b"second"

    def test_a_span_is_cut_off_at_the_end_of_the_object(self, store: Store) -> None:
        store.write("k", b"0123456789")
        assert store.read("k", (2, 5)) == b"234"
        assert store.read("k", (8, 100)) == b"89"
        assert store.read("k", (10, 20)) == b""
        assert store.read("k", (50, 60)) == b""
        assert store.read("k", (3, 3)) == b""

    def test_a_span_that_ends_before_it_starts_is_our_own_mistake(self, store: Store) -> None:
        store.write("k", b"0123456789")
        with pytest.raises(ValueError, match="invalid byte range"):
            store.read("k", (5, 2))

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_names_come_back_as_they_were_given(self, store: Store, name: str) -> None:
        store.write(f"odd/{name}/{name}", name.encode())
        assert store.read(f"odd/{name}/{name}") == name.encode()
        assert [entry.key for entry in store.list(f"odd/{name}/")] == [f"odd/{name}/{name}"]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_leave_the_store_is_refused(self, store: Store, key: str) -> None:
        for verb in (store.read, store.stat, store.delete, lambda k: store.write(k, b"")):
            with pytest.raises(StoreError, match="cannot name an object"):
                verb(key)
        assert list(store.list()) == []

    # ── what is not there ────────────────────────────────────────────────────

    def test_what_is_not_there_is_said_to_be_not_there(self, store: Store) -> None:
        store.write("folder/k", b"")
        for key in ("missing", "folder", "folder/k2", "missing/k"):
            with pytest.raises(NotThere):
                store.read(key)
            with pytest.raises(NotThere):
                store.read(key, (0, 1))
            with pytest.raises(NotThere):
                store.read(key, (0, 0))
            with pytest.raises(NotThere):
                store.stat(key)

    def test_deleting_twice_is_success(self, store: Store) -> None:
        store.write("gone", b"x")
        store.delete("gone")
        store.delete("gone")
        store.delete("never/was")
        with pytest.raises(NotThere):
            store.read("gone")

    # ── versions and conditions ──────────────────────────────────────────────

    def test_write_stat_and_list_tell_the_same_version(self, store: Store) -> None:
        version = store.write("k", b"one")
        assert version != ABSENT
        assert store.stat("k").version == version
        assert [(entry.key, entry.size, entry.version) for entry in store.list()] == [("k", 3, version)]

    def test_other_bytes_have_another_version(self, store: Store) -> None:
        versions = [store.write("k", f"text {number}".encode()) for number in range(20)]
        assert len(set(versions)) == 20

    def test_creating_what_exists_is_a_conflict_and_changes_nothing(self, store: Store) -> None:
        version = store.write("k", b"first", when=ABSENT)
        with pytest.raises(Conflict):
            store.write("k", b"second", when=ABSENT)
        assert store.read("k") == b"first"
        assert store.stat("k").version == version

    def test_a_deleted_object_can_be_created_again(self, store: Store) -> None:
        store.write("k", b"first", when=ABSENT)
        store.delete("k")
        store.write("k", b"second", when=ABSENT)
        assert store.read("k") == b"second"

    def test_updates_follow_one_another(self, store: Store) -> None:
        version = store.write("k", b"0", when=ABSENT)
        for number in range(1, 6):
            version = store.write("k", str(number).encode(), when=version)
        assert store.read("k") == b"5"

    def test_a_version_from_a_listing_is_as_good_as_any(self, store: Store) -> None:
        store.write("k", b"0")
        [entry] = store.list()
        store.write("k", b"1", when=entry.version)
        assert store.read("k") == b"1"

    def test_updating_an_old_version_is_a_conflict_and_changes_nothing(self, store: Store) -> None:
        old = store.write("k", b"old")
        store.write("k", b"new", when=old)
        with pytest.raises(Conflict):
            store.write("k", b"late", when=old)
        assert store.read("k") == b"new"

    def test_updating_what_is_gone_is_a_conflict(self, store: Store) -> None:
        version = store.write("k", b"x")
        store.delete("k")
        with pytest.raises(Conflict):
            store.write("k", b"y", when=version)
        assert list(store.list()) == []

    def test_of_many_that_create_one_wins(self, reopen: Callable[[], Store]) -> None:
        start = threading.Barrier(WRITERS)

        def create(number: int) -> bool:
            store = reopen()
            list(store.list())  # connected before the race
            start.wait()
            try:
                store.write("claim", f"writer {number}".encode(), when=ABSENT)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            won = list(pool.map(create, range(WRITERS)))
        assert won.count(True) == 1
        assert reopen().read("claim") == f"writer {won.index(True)}".encode()

    def test_no_update_of_a_counter_is_lost(self, reopen: Callable[[], Store]) -> None:
        reopen().write("counter", b"0")

        def count(_: int) -> None:
            store, done = reopen(), 0
            while done < 3:
                version = store.stat("counter").version
                value = int(store.read("counter"))
                try:
                    store.write("counter", str(value + 1).encode(), when=version)
                except Conflict:
                    continue
                done += 1

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(count, range(WRITERS)))
        assert reopen().read("counter") == str(3 * WRITERS).encode()

    # ── listing ──────────────────────────────────────────────────────────────

    def test_listing_is_in_the_order_of_the_bytes(self, store: Store) -> None:
        keys = ["a-b", "a/b", "a0", "a", "B", "ä", "a/b-c", "z/1", "~"]
        files = [key for key in keys if key not in ("a",)]  # a folder cannot hold both `a` and `a/b`
        for key in files:
            store.write(key, b"")
        assert [entry.key for entry in store.list()] == sorted(files, key=str.encode)

    def test_a_prefix_is_a_string_not_a_folder(self, store: Store) -> None:
        for key in ("logs/a1-1", "logs/a1-2", "logs/a2-1", "logs2/a1", "logs/a1/x", "other"):
            store.write(key, b"")
        assert [entry.key for entry in store.list("logs/a1")] == ["logs/a1-1", "logs/a1-2", "logs/a1/x"]
        assert [entry.key for entry in store.list("logs/a1-")] == ["logs/a1-1", "logs/a1-2"]
        assert [entry.key for entry in store.list("logs")][-1] == "logs2/a1"
        assert [entry.key for entry in store.list("logs/a1-1")] == ["logs/a1-1"]

    def test_a_listing_has_all_of_its_pages(self, store: Store) -> None:
        for number in range(23):
            store.write(f"many/{number:04d}", b"x")
        assert [entry.key for entry in store.list("many/")] == [f"many/{number:04d}" for number in range(23)]

    def test_a_listing_of_nothing_is_empty(self, store: Store) -> None:
        assert list(store.list()) == []
        assert list(store.list("no/such/folder/")) == []

    def test_folders_are_told_without_what_lies_in_them(self, store: Store) -> None:
        for key in ("r1/plan.json", "r1/events/1", "r2/plan.json", "r10/plan.json", "file"):
            store.write(key, b"")
        assert subfolders(store) == ["r1", "r10", "r2"]
        assert subfolders(store, "r1/") == ["events"]
        assert subfolders(store, "r2/") == []

    # ── places below places ──────────────────────────────────────────────────

    def test_a_store_below_sees_the_same_objects(self, store: Store) -> None:
        store.write("run/plan.json", b"{}")
        below = open_store(join(store.url, "run"))
        assert below.read("plan.json") == b"{}"
        assert [entry.key for entry in below.list()] == ["plan.json"]

    # ── whole files ──────────────────────────────────────────────────────────

    def test_files_are_sent_and_fetched(self, store: Store, tmp_path: Path) -> None:
        content = os.urandom(LARGE)
        sent, fetched = tmp_path / "sent", tmp_path / "deep" / "fetched"
        sent.write_bytes(content)
        steps: list[tuple[int, int]] = []
        assert send_file(store, "big", sent) == store.stat("big").version
        entry = fetch_file(store, "big", fetched, progress=lambda done, total: steps.append((done, total)))
        assert fetched.read_bytes() == content
        assert entry.size == LARGE
        assert steps[0] == (0, LARGE)
        assert steps[-1] == (LARGE, LARGE)
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert os.listdir(fetched.parent) == ["fetched"]

    def test_an_empty_file_is_fetched(self, store: Store, tmp_path: Path) -> None:
        store.write("empty", b"")
        fetch_file(store, "empty", tmp_path / "empty")
        assert (tmp_path / "empty").read_bytes() == b""

    def test_fetching_what_is_not_there_leaves_no_file(self, store: Store, tmp_path: Path) -> None:
        folder = tmp_path / "fetched"
        folder.mkdir()
        with pytest.raises(NotThere):
            fetch_file(store, "missing", folder / "file")
        assert os.listdir(folder) == []

    def test_the_store_proves_its_conditions_and_is_left_clean(self, store: Store) -> None:
        require_conditional_put(store)
        assert list(store.list()) == []
