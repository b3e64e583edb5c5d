"""Bundles of strangers, whose checksums are right: an error that names the bundle, never a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from headway.artifacts.models import open_model
from headway.artifacts.own_model import Choice
from headway.artifacts.predictor import open_service
from headway.bundle.format import RECORD, Bundle
from headway.core.errors import BadBundle, HeadwayError
from tests.serving.test_services import MADE

CONFIGS: dict[str, bytes] = {
    "no JSON": b"{", "empty": b"", "a list": b"[]", "null": b"null", "a number": b"5", "not UTF-8": b"\xff\xfe",
    "without an end": b"[" * 100_000, "another recipe's": b'{"lr": "fast"}', "odd types": b'{"image_size": {"a": 1}}',
}  # fmt: skip
SIZES = {
    "captioning": {"embedding_size": 10**9, "layers": 10**9, "image_size": 10**6, "beam": 10**9},
    "translation": {"d_model": 10**9, "decoder_layers": 10**30, "encoder_layers": 10**9, "heads": 10**9},
    "classification": {"image_size": 10**9},
    "grading": {"image_size": 10**9},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    return {recipe: Path(make(root / recipe)) for recipe, make in MADE.items()}


def sealed(bundle: Path, to: Path, name: str, body: bytes) -> str:
    """A copy of the bundle with another file, and the record that fits it."""
    shutil.copytree(bundle, to)
    (to / name).write_bytes(body)
    record = json.loads((to / RECORD).read_bytes())
    record["files"][name] = {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    (to / RECORD).write_text(json.dumps(record))
    return str(to)


@pytest.mark.parametrize("form", CONFIGS)
@pytest.mark.parametrize("recipe", sorted(MADE))
def test_a_hostile_config_is_an_error(whole: dict[str, Path], recipe: str, form: str, tmp_path: Path) -> None:
    url = sealed(whole[recipe], tmp_path / "bundle", "config.json", CONFIGS[form])
    for load in (lambda: open_service(Bundle.open(url)), lambda: open_model(url, Choice()).answers([])):
        with pytest.raises(HeadwayError, match=r"config\.json"):
            load()


@pytest.mark.parametrize(("recipe", "name"), [(recipe, name) for recipe, sizes in SIZES.items() for name in sizes])
def test_a_model_larger_than_its_weights_is_not_built(
    whole: dict[str, Path], recipe: str, name: str, tmp_path: Path
) -> None:
    config = json.loads((whole[recipe] / "config.json").read_bytes()) | {name: SIZES[recipe][name]}
    url = sealed(whole[recipe], tmp_path / "bundle", "config.json", json.dumps(config).encode())
    with pytest.raises(HeadwayError, match=name):
        open_service(Bundle.open(url))


@pytest.mark.parametrize("body", [b"[]", b"null", b"{", b"5", b'["a", "a"]', b'{"a": []}', b"\xff"])
def test_a_hostile_vocabulary_is_an_error(whole: dict[str, Path], body: bytes, tmp_path: Path) -> None:
    names = {"captioning": "vocabulary.json", "classification": "classes.json", "translation": "tokenizer.json"}
    for recipe, name in names.items():
        url = sealed(whole[recipe], tmp_path / recipe, name, body)
        with pytest.raises((BadBundle, HeadwayError)):
            open_service(Bundle.open(url))
