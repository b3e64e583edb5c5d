"""`headway data` as it is typed: what is asked for reaches the shards, and what was left out is said."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Headway
from tests.servers.loopback import Answer, LoopbackServer, Request

for needed in ("numpy", "pyarrow", "PIL", "simplejpeg", "pyvips", "distributed", "tokenizers"):
    pytest.importorskip(needed)

from tests.data import layouts  # noqa: E402 - its pictures need what may be missing


def test_what_is_asked_for_reaches_the_data(headway: Headway, tmp_path: Path) -> None:
    source = layouts.class_folders(tmp_path / "leaves", classes=2, each=10)
    said = headway(
        "data", "prepare", source, "--to", "leaves", "--size", 32, "--encoding", "raw", "--fit", "pad", "--workers", 1,
        "--splits", "train=0.5,held-out=0.5", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads(said.out)["rows"] == {"train": 10, "held-out": 10}
    settings = json.loads(Path("leaves/manifest.json").read_text())["settings"]
    assert (settings["fit"], settings["encoding"], settings["size"]) == ("pad", "raw", 32)


def test_an_inspection_says_what_is_there_and_what_was_dropped(headway: Headway, tmp_path: Path) -> None:
    source = layouts.coco(tmp_path / "coco", train=6, val=3)
    (source / "train2017" / f"{2:012d}.jpg").write_bytes(b"no picture")
    assert headway("data", "prepare", source, "--to", "coco", "--size", 32, "--workers", 1).code == 2  # 1 of 9: > 1 %
    assert headway("data", "prepare", source, "--to", "coco", "--size", 32, "--workers", 1, "--max-bad", 2).code == 0
    seen = headway("data", "inspect", "coco")
    assert "dropped: 1 × " in seen.out
    facts = json.loads(headway("data", "inspect", "coco", "--json").out)
    assert facts["splits"]["train"] | {"bytes": 0} == {"rows": 5, "bytes": 0, "captions": 25, "classes": {}}
    assert sum(facts["dropped"].values()) == 1
    (line,) = headway("data", "inspect", "coco", "--dropped").out.splitlines()
    assert "000000000002" in line or " 2 (train)" in line
    assert headway("data", "inspect", "coco", "--page", "page.html").code == 0
    assert "<img" in Path("page.html").read_text()


def test_words_and_languages_choose(headway: Headway, tmp_path: Path) -> None:
    source = layouts.parallel(tmp_path / "text", languages=("cs", "de", "en"))
    said = headway("data", "prepare", source, "--to", "text", "--languages", "en,de", "--workers", 1, "--json")
    assert said.code == 0, said.err
    captions = layouts.coco(tmp_path / "coco")
    none_left = headway(
        "data", "prepare", captions, "--to", "c", "--words", "40-60", "--workers", 1, "--max-bad", "100%"
    )
    assert none_left.code == 2
    assert "caption too short" in none_left.err


def test_user_and_key_are_references_and_reach_the_server(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts.coco(tmp_path / "coco")
    body = Path(shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "coco")).read_bytes()
    wanted = "Basic " + base64.b64encode(b"me:canary-key").decode()

    def answer(request: Request) -> Answer:
        return Answer(body=body) if request.headers.get("authorization") == wanted else Answer(status=401)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KAGGLE_USERNAME", "me")
    monkeypatch.setenv("KAGGLE_KEY", "canary-key")
    with LoopbackServer(answer) as server:
        typed = ("data", "prepare", f"{server.url}/set.zip", "--to", "coco", "--size", 32, "--workers", 1)
        refused = headway(*typed)
        assert refused.code != 0
        assert "--user env:KAGGLE_USERNAME" in refused.err
        said = headway(*typed, "--user", "env:KAGGLE_USERNAME", "--key", "env:KAGGLE_KEY")
    assert said.code == 0, said.err
    assert "canary" not in said.out + said.err
    assert not any(b"canary-key" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--words", "9-2"], "--words 2-60"),
        (["--languages", "en"], "--languages en,de"),
        (["--splits", "train:1"], "--splits train=0.9,val=0.1"),
        (["--user", "env:ME"], "--user env:KAGGLE_USERNAME --key env:KAGGLE_KEY"),
        (["--user", "me", "--key", "s3cret-typed-in-clear"], "env:NAME"),
        (["--quality", "200"], "1 to 100"),
        (["--size", "3"], "--size between 8 and 4096"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_type(headway: Headway, tmp_path: Path, words: list[str], fix: str) -> None:
    source = layouts.class_folders(tmp_path / "leaves")
    said = headway("data", "prepare", source, "--to", "out", *words)
    assert said.code == 2
    assert fix in said.err
    assert "s3cret" not in said.err
    assert not Path("out").exists()
