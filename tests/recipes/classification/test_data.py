"""Where the pictures come from: drawn, prepared, or a folder, archive or URL that is prepared when training starts."""

from __future__ import annotations

import http.server
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from headway.core.errors import BadInput
from headway.data.synthetic import leaves
from headway.recipes.classification.data import LEAVES, check_classes, groups_of, load
from headway.spec import Cache, Data, Source
from tests.recipes.classification.tiny import settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of drawn leaves, 8, 8 and 24 pictures, without splits."""
    root = tmp_path_factory.mktemp("leaves") / "raw"
    for number, count in ((0, 8), (1, 8), (2, 24)):
        place = root / leaves.CLASSES[number]
        place.mkdir(parents=True)
        for n in range(count):
            Image.fromarray(leaves.draw("train", 16 * n + number)).save(place / f"{n}.png")
    return root


def cache_in(path: Path) -> Cache:
    return Cache(dir=str(path))


def test_without_data_leaves_are_drawn() -> None:
    read = load(settings(), Data(), "test")
    assert (len(read), read.name, read.classes) == (32, f"{LEAVES} (test)", leaves.CLASSES)
    batch = read.in_order().batch(0, 0, 0, 1)
    assert np.array_equal(batch["picture"][3].permute(1, 2, 0).numpy(), leaves.draw("test", 3))
    assert int(batch["label"][3]) == leaves.label("test", 3)


def test_a_folder_of_classes_is_split_and_prepared_when_training_starts(folder: Path, tmp_path: Path) -> None:
    data = Data(train=(Source(source=str(folder)),))
    cfg = settings(train_share=0.5)
    train = load(cfg, data, "train", cache=cache_in(tmp_path))
    rest = [len(load(cfg, data, split, cache=cache_in(tmp_path))) for split in ("val", "test")]
    assert (len(train), rest) == (20, [10, 10])
    assert train.classes == tuple(sorted(leaves.CLASSES[:3]))
    assert train.side == cfg.image_size


def test_a_url_is_downloaded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "downloads"))
    (tmp_path / "served").mkdir()
    with zipfile.ZipFile(tmp_path / "served" / "leaves.zip", "w") as packed:
        for path in sorted(folder.rglob("*.png")):
            packed.write(path, path.relative_to(folder))
    with serving(tmp_path / "served") as (url, asked):
        data = Data(train=(Source(source=f"{url}/leaves.zip"),))
        for _ in range(2):
            assert len(load(settings(), data, "train", cache=cache_in(tmp_path / "cache"))) == 31
        assert asked.count("/leaves.zip") == 1


class _Recording(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *args: object) -> None:
        pass


class serving:
    """A folder over HTTP, and the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        asked: list[str] = []
        handler = type("Handler", (_Recording,), {"asked": asked})
        self._asked = asked
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *given: handler(*given, directory=str(folder))
        )

    def __enter__(self) -> tuple[str, list[str]]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}", self._asked

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_in_memory_gives_the_same_pictures(folder: Path, tmp_path: Path) -> None:
    data = Data(train=(Source(source=str(folder)),))
    plain, held = (load(settings(in_memory=held), data, "train", cache=cache_in(tmp_path)) for held in (False, True))
    for epoch in range(2):
        one, other = plain.training(settings(), seed=1), held.training(settings(), seed=1)
        mine, theirs = one.batch(epoch, 0, 0, 1), other.batch(epoch, 0, 0, 1)
        assert torch.equal(mine["picture"], theirs["picture"])
        assert torch.equal(mine["label"], theirs["label"])


def test_max_samples_is_a_sample_of_all_classes(folder: Path, tmp_path: Path) -> None:
    read = load(settings(max_samples=16), Data(train=(Source(source=str(folder)),)), "train", cache=cache_in(tmp_path))
    assert len(read) == 16
    assert set(read.labels().tolist()) == {0, 1, 2}


def test_the_sampler_draws_rare_classes_more_often(folder: Path, tmp_path: Path) -> None:
    read = load(settings(), Data(train=(Source(source=str(folder)),)), "train", cache=cache_in(tmp_path))
    shares = []
    for balance in (0.0, 1.0):
        feed = read.training(settings(sampler="balanced", balance=balance), seed=1)
        drawn = torch.cat([feed.batch(e, s, 0, 1)["label"] for e in range(6) for s in range(len(feed))])
        shares.append(float((drawn == 2).float().mean()))
    assert shares[0] == pytest.approx(0.6, abs=0.08)
    assert shares[1] == pytest.approx(1 / 3, abs=0.08)


def test_drawn_leaves_are_not_mixed_with_photographs(folder: Path) -> None:
    with pytest.raises(BadInput, match="cannot be mixed"):
        load(settings(), Data(train=(Source(source=LEAVES), Source(source=str(folder)))), "train")


def test_groups_follow_from_a_part_of_the_name() -> None:
    wanted = {"healthy": "healthy", "*": "sick"}
    assert groups_of(["Oak healthy", "Oak rust"], wanted) == {"Oak healthy": "healthy", "Oak rust": "sick"}
    assert groups_of(["cat", "dog"], wanted) is None, "one group tells nothing apart"


def test_other_classes_are_refused_by_name() -> None:
    read = load(settings(), Data(), "val")
    check_classes(leaves.CLASSES, read)
    with pytest.raises(BadInput, match="Oak___healthy"):
        check_classes([*leaves.CLASSES[:-1], "Oak___healthy"], read)
    with pytest.raises(BadInput, match="in another order"):
        check_classes(leaves.CLASSES[::-1], read)
