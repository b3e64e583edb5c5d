"""Output on its way to the store: bounded, lossless, in segments that are exact slices."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import Transient
from headway.storage import Store, open_store
from headway.storage.redaction import Redactor
from headway.supervisor import log_pipeline as spooling
from headway.supervisor.log_pipeline import Spool, upload_leftovers


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    return open_store(f"memory://{tmp_path.name}/run")


def texts(data: bytes) -> list[bytes]:
    return [line.partition(b" ")[2] for line in data.split(b"\n")[:-1]]


def logged(store: Store) -> bytes:
    return b"".join(store.read(entry.key) for entry in store.list("logs/"))


@given(st.lists(st.binary(max_size=40).map(lambda b: b.translate(None, b"\r\b\x1b\x9b")), max_size=20))
def test_whatever_comes_in_whatever_pieces_goes_out(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"), 1, "r0")
    shown = b"".join(spool.append(piece) for piece in pieces) + spool.finish()
    spool.close()
    whole = b"".join(pieces)
    expected = whole if whole.endswith(b"\n") or not whole else whole + b"\n"
    assert shown == expected
    assert b"".join(text + b"\n" for text in texts(spool.path.read_bytes())) == expected


@given(st.data())
def test_a_secret_is_hidden_however_it_is_cut(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    secret = 's3cr3t/väl"ue'
    text = f"a {secret} b {secret}{secret}\n".encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    spool = Spool(tmp_path_factory.mktemp("spool"), 1, "r0", redact=Redactor([secret]))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        spool.append(text[start:stop])
    spool.finish()
    spool.close()
    assert texts(spool.path.read_bytes()) == [b"a *** b ******"]


def test_a_secret_is_hidden_in_a_line_too_long_to_hold(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1, "r0", redact=Redactor(["0123456789"]))
    for _ in range(30_000):
        spool.append(b"0123456789abc")
    spool.finish()
    assert b"0123456789" not in spool.path.read_bytes().replace(b"\n", b"")


def test_a_secret_is_hidden_in_json_too() -> None:
    redact = Redactor(['quo"te\nd'])
    assert redact(b'{"x": "quo\\"te\\nd"}') == b'{"x": "***"}'


def test_segments_are_exact_slices_that_end_with_a_line(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "SEGMENT_BYTES", 100)
    spool = Spool(tmp_path, 3, "r1")
    spool.append(b"".join(b"line %d\n" % number for number in range(50)) + b"half")
    spool.upload(store)
    assert not spool.pending
    assert logged(store) == spool.path.read_bytes()
    keys = [entry.key for entry in store.list("logs/")]
    assert keys[0] == "logs/a0003-r1-0000001.log"
    assert len(keys) > 5
    assert all(store.read(key).endswith(b"\n") for key in keys)
    spool.finish()
    spool.upload(store)
    assert texts(logged(store))[-1] == b"half"


def test_a_write_that_failed_or_whose_answer_was_lost_is_repeated_and_not_doubled(tmp_path: Path, store: Store) -> None:
    class Flaky:
        def __init__(self) -> None:
            self.url, self.plan = store.url, ["fail", "lose", "fail", "lose"]

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, key: str, body: bytes, **more: str) -> str:
            what = self.plan.pop(0) if self.plan else "work"
            version = store.write(key, body, **more) if what != "fail" else ""
            if what != "work":
                raise Transient(what)
            return version

    spool, flaky = Spool(tmp_path, 1, "r0"), Flaky()
    for number in range(6):
        spool.append(b"%d\n" % number)  # more arrives between the tries
        try:
            spool.upload(flaky)  # type: ignore[arg-type]
        except Transient:
            continue
    spool.upload(flaky)  # type: ignore[arg-type]
    assert texts(logged(store)) == [b"%d" % number for number in range(6)]


def test_what_does_not_fit_is_counted_and_said(tmp_path: Path, store: Store) -> None:
    spool = Spool(tmp_path, 1, "r0", backlog_bytes=1000)
    for number in range(100):
        spool.append(b"%09d\n" % number)
    assert spool.path.stat().st_size < 1100
    spool.upload(store)
    spool.append(b"after\n")
    spool.upload(store)
    lines = texts(logged(store))
    kept = len(lines) - 2
    assert lines[-1] == b"after"
    assert lines[-2] == b"[headway: %d bytes of output were dropped: the local log buffer was full]" % (
        (100 - kept) * 10
    )


def test_a_full_disk_leaves_whole_lines_and_is_said(tmp_path: Path, store: Store) -> None:
    spool = Spool(tmp_path, 1, "r0")
    spool.append(b"before\n")
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (spool.path.stat().st_size + 3, allowed[1]))
    try:
        spool.append(b"lost\n")  # three bytes of it fit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    spool.append(b"after\n")
    spool.upload(store)
    missing = b"[headway: 5 bytes of output were dropped: the local log buffer was full]"
    assert texts(logged(store)) == [b"before", missing, b"after"]


def test_disk_under_what_was_sent_is_given_back_where_nobody_reads_the_spool(tmp_path: Path, store: Store) -> None:
    spool = Spool(tmp_path, 1, "r0", keep=False)
    spool.append(b"".join(b"%0100d\n" % number for number in range(50_000)))
    spool.upload(store)
    assert spool.path.stat().st_blocks * 512 < 1 << 20
    spool.append(b"more\n")
    spool.upload(store)
    assert len(texts(logged(store))) == 50_001


def test_rescue_sends_the_rest_once_and_only_of_our_own_earlier_attempts(tmp_path: Path, store: Store) -> None:
    for attempt, writer in ((1, "r0"), (1, "r7"), (2, "r0")):
        spool = Spool(tmp_path, attempt, writer)
        spool.append(b"one\n")
        if writer == "r0":
            spool.upload(store)
        spool.append(b"two\n")
        spool.close()
    for expected in (["a0001-r0.log"], []):
        assert upload_leftovers(tmp_path, store, below=2, writers=["s", "r0"]) == expected
    keys = [entry.key for entry in store.list("logs/")]
    assert keys == ["logs/a0001-r0-0000001.log", "logs/a0001-r0-0000002.log", "logs/a0002-r0-0000001.log"]
