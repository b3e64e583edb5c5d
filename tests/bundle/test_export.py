"""Publishing: a reader finds the old bundle or the new one, and nobody's own files are touched."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headway.bundle import publish
from headway.bundle.format import Bundle, BundleParts
from headway.cli import main
from headway.core.errors import BadBundle, BadInput, Conflict, Denied, DiskFull
from headway.storage import open_store
from tests.bundle.test_bundle import parts
from tests.servers.gcs import GcsServer


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return written(tmp_path / "made", parts())


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with GcsServer("bucket") as server:
        server.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs://bucket/models/captions"


@pytest.fixture(params=["folder", "memory", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to publish: each kind of place answers the same."""
    if request.param == "gs":
        found: str = request.getfixturevalue("bucket")
        return found
    if request.param == "memory":
        return f"memory://{request.node.name.replace('[', '-').replace(']', '')}/models"
    return str(tmp_path / "models" / "captions")


def written(folder: Path, what: BundleParts) -> Path:
    what.write(folder)
    return folder


def value(url: str) -> float:
    return float(Bundle.open(url).weights()["layer.weight"][0, 0])


def test_a_bundle_is_published_where_nothing_was(made: Path, place: str) -> None:
    assert publish.publish(made, place) == place
    assert value(place) == 1.0
    assert Bundle.open(place).config == {"hidden": 3}


def test_a_bundle_is_replaced_as_a_whole(made: Path, place: str, tmp_path: Path) -> None:
    publish.publish(made, place)
    with_more = BundleParts(**{**parts(fill=2.0).__dict__, "files": {"other.json": b"{}\n"}})
    publish.publish(written(tmp_path / "new", with_more), place)
    bundle = Bundle.open(place)
    assert float(bundle.weights()["layer.weight"][0, 0]) == 2.0
    assert set(bundle.record.files) == {"README.md", "config.json", "model.safetensors", "other.json"}


def test_publishing_the_same_again_changes_nothing(made: Path, place: str) -> None:
    publish.publish(made, place)
    publish.publish(made, place)
    assert value(place) == 1.0


def test_what_is_not_a_bundle_is_refused_and_kept(made: Path, place: str) -> None:
    open_store(place).write("thesis.tex", b"years of work")
    with pytest.raises(BadInput, match="not a bundle"):
        publish.publish(made, place)
    assert [entry.key for entry in open_store(place).list()] == ["thesis.tex"]


def test_a_half_published_bundle_is_finished_by_the_next(
    made: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short at the last moment, the old one stands; then it is done again."""
    publish.publish(made, place)
    new = written(made.parent / "new", parts(fill=2.0))
    with monkeypatch.context() as broken:
        broken.setattr(publish, "_switch", _fails)
        broken.setattr(publish, "to_json", _fails)
        with pytest.raises(DiskFull if "://" not in place else OSError):
            publish.publish(new, place)
    assert value(place) == 1.0
    publish.publish(new, place)
    assert value(place) == 2.0


def _fails(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# Folders


def test_files_of_others_in_a_bundle_are_not_destroyed_with_it(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "models"
    publish.publish(made, str(target))
    (target / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"notes\.txt"):
        publish.publish(made, str(target))
    assert (target / "notes.txt").read_text() == "mine"


def test_a_file_is_not_replaced_by_a_folder(made: Path, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("mine")
    with pytest.raises(BadInput, match="is a file"):
        publish.publish(made, str(tmp_path / "models"))
    assert (tmp_path / "models").read_text() == "mine"


def test_an_empty_folder_is_taken(made: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    publish.publish(made, str(tmp_path / "models"))
    assert value(str(tmp_path / "models")) == 1.0


def test_nothing_is_left_beside_what_was_published(made: Path, tmp_path: Path) -> None:
    for _ in range(2):
        publish.publish(made, str(tmp_path / "models" / "v1"))
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["v1"]


def test_a_link_stays_a_link(made: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    publish.publish(made, str(tmp_path / "models"))
    assert (tmp_path / "models").is_symlink()
    assert value(str(tmp_path / "disk")) == 1.0


def test_readers_meet_a_whole_bundle_at_every_moment(made: Path, tmp_path: Path) -> None:
    """While two bundles take turns, one that is opened is always one of them, never torn and never gone."""
    target = str(tmp_path / "models")
    other = written(tmp_path / "other", parts(name="other", fill=2.0))
    publish.publish(made, target)
    over, met, trouble = threading.Event(), set(), []

    def read() -> None:
        while not over.is_set():
            try:
                met.add(Bundle.open(target).name)
            except BadBundle as error:
                trouble.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        publish.publish(other if turn % 2 == 0 else made, target)
    over.set()
    reader.join()
    assert trouble == []
    assert met == {"captions", "other"}


def test_without_a_swap_of_names_it_is_still_replaced(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_exchange", lambda one, other: False)
    target = tmp_path / "models"
    publish.publish(made, str(target))
    publish.publish(written(tmp_path / "new", parts(fill=2.0)), str(target))
    assert value(str(target)) == 2.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "models", "new"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_one_may_not_write_to_is_said_so(made: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(Denied):
        publish.publish(made, str(tmp_path / "locked" / "models"))


# Object stores


def test_the_files_of_a_replaced_bundle_stay_for_its_readers_and_go_with_the_next(made: Path, bucket: str) -> None:
    store = open_store(bucket)
    publish.publish(made, bucket)
    first = Bundle.open(bucket).record.files["model.safetensors"].at
    publish.publish(written(made.parent / "two", parts(fill=2.0)), bucket)
    assert first in {entry.key for entry in store.list()}
    publish.publish(written(made.parent / "three", parts(fill=3.0)), bucket)
    assert first not in {entry.key for entry in store.list()}
    assert value(bucket) == 3.0


def test_of_two_publishers_at_once_one_is_told(made: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish.publish(made, bucket)
    two, three = (written(made.parent / str(n), parts(fill=n)) for n in (2.0, 3.0))
    inner = publish._send

    def overtaken(*args: object) -> None:
        monkeypatch.setattr(publish, "_send", inner)
        publish.publish(three, bucket)
        inner(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(publish, "_send", overtaken)
    with pytest.raises(Conflict):
        publish.publish(two, bucket)
    assert value(bucket) == 3.0


def test_every_file_is_also_found_under_its_plain_name(made: Path, bucket: str) -> None:
    store = open_store(bucket)
    publish.publish(made, bucket)
    with_more = BundleParts(**{**parts(fill=2.0).__dict__, "files": {"words.json": b"[1]\n"}})
    publish.publish(written(made.parent / "two", with_more), bucket)
    for name, entry in Bundle.open(bucket).record.files.items():
        assert store.read(name) == store.read(entry.at or "")
    publish.publish(written(made.parent / "three", parts(fill=3.0)), bucket)
    assert "words.json" not in {entry.key for entry in store.list()}


def test_a_folder_with_the_plain_names_of_an_object_store_is_a_bundle(made: Path, bucket: str, tmp_path: Path) -> None:
    publish.publish(made, bucket)
    store, copy = open_store(bucket), tmp_path / "copy"
    copy.mkdir()
    for name in [*Bundle.open(bucket).record.files, "bundle.json"]:
        (copy / name).write_bytes(store.read(name))
    assert value(str(copy)) == 1.0
    (copy / "config.json").write_bytes(b"{}\n")
    with pytest.raises(BadBundle, match=r"config\.json has 3 bytes"):
        Bundle.open(str(copy))


def test_pull_brings_each_file_once_under_its_plain_name(made: Path, bucket: str, tmp_path: Path) -> None:
    run = bucket.removesuffix("/models/captions") + "/runs/captions-1"
    publish.publish(made, f"{run}/export")
    open_store(run).write("plan.json", b"{}")
    assert main(["pull", run, "--to", str(tmp_path / "here")]) == 0
    pulled = {path.name for path in (tmp_path / "here/export").iterdir()}
    assert pulled == {"README.md", "bundle.json", "config.json", "model.safetensors", "vocabulary.json"}
    assert value(str(tmp_path / "here/export")) == 1.0


def test_a_missing_object_is_named(made: Path, bucket: str) -> None:
    publish.publish(made, bucket)
    at = Bundle.open(bucket).record.files["config.json"].at
    assert at is not None
    open_store(bucket).delete(at)
    with pytest.raises(BadBundle, match=r"config\.json is missing"):
        Bundle.open(bucket)


def test_a_bundle_from_afar_is_used_after_it_has_gone(made: Path, bucket: str) -> None:
    publish.publish(made, bucket)
    bundle = Bundle.open(bucket)
    for entry in list(open_store(bucket).list()):
        open_store(bucket).delete(entry.key)
    assert torch.equal(bundle.weights()["layer.bias"], torch.arange(3.0))
