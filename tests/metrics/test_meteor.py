"""METEOR is there when Java and its jar are, equals the Java tool's, and is otherwise left out by name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from headway.core.errors import BadInput, HeadwayError
from headway.metrics import captions as jar
from headway.metrics.files import score_captions

PEERS = Path.home() / ".cache" / "headway-bench" / "caption-metrics" / "lib"

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")


@pytest.fixture
def captions(tmp_path: Path) -> tuple[Path, Path]:
    results, references = tmp_path / "results.json", tmp_path / "references.json"
    results.write_text(json.dumps([{"image_id": 1, "caption": "a dog is running"}]))
    references.write_text(json.dumps([{"image_id": 1, "caption": one} for one in ("a dog runs", "the dog is running")]))
    return results, references


def test_without_java_meteor_is_left_out_by_name(
    captions: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = score_captions(*captions)
    assert "meteor" not in answer
    assert answer["notes"] == ["meteor is left out: Java is not installed (METEOR is a Java program)"]
    with pytest.raises(BadInput, match="METEOR cannot be computed: Java is not installed"):
        jar.meteor(["a"], [["a"]])


@needs_java
def test_without_its_jar_meteor_is_left_out_with_what_to_install(
    captions: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pycocoevalcap").mkdir()
    (tmp_path / "pycocoevalcap" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pycocoevalcap", raising=False)
    assert "its jar is not installed: " in score_captions(*captions)["notes"][0]


@needs_java
def test_a_jar_that_does_not_run_is_an_error_with_javas_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "pycocoevalcap" / "meteor"
    folder.mkdir(parents=True)
    (tmp_path / "pycocoevalcap" / "__init__.py").touch()
    (folder / "meteor-1.5.jar").write_text("no jar")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pycocoevalcap", raising=False)
    with pytest.raises(HeadwayError, match=r"ended with code 1: .*meteor-1\.5\.jar"):
        jar.meteor(["a dog"], [["a dog"]])


@needs_java
@pytest.mark.slow
def test_meteor_is_that_of_the_java_tool(
    captions: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if jar.unavailable_reason():
        for packages in PEERS.glob("python*/site-packages"):
            monkeypatch.syspath_prepend(packages)
    if jar.unavailable_reason():
        pytest.skip("METEOR's jar is not installed (the extra `meteor`, or run `python -m benchmarks caption_metrics`)")
    corpus, each = jar.meteor(
        ["a dog is running", "", "a ||| cat"], [["a dog runs", "the dog is running"], ["a dog"], ["a cat"]]
    )
    # as the jar itself says when it is asked by hand
    assert each[0] == pytest.approx(0.4535606800758789, abs=1e-9)
    assert each[1] == 0.0
    assert each[2] > 0.9
    assert 0 < corpus < 1
