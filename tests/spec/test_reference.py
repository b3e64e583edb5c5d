"""docs/job-file.md names every key there is, as the code has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from headway.core.errors import BadJob
from headway.plugins import built_in_catalog
from headway.spec import Job, loads, schema
from headway.spec.constraints import EXPANDED, keys_of, union_members, unmarked
from headway.spec.model import Accelerator, Cadence, TargetEntry
from headway.spec.validate import WHERE_EXPANDED
from tests.spec.world import CATALOG

PAGE = Path(__file__).parents[2] / "docs" / "job-file.md"


def keys(cls: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, annotation) of everything below a dataclass."""
    for key in keys_of(cls).values():
        yield f"{path}{key.name}", key.type
        for part in [part for member in union_members(key.type) for part in (member, *get_args(member))]:
            if is_dataclass(part) and part not in (Accelerator, Cadence):
                yield from keys(part, f"{path}{key.name}.")


def test_the_reference_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert schema.renewed(text) == text, "run: python -m headway.spec.schema docs/job-file.md"


def test_the_reference_names_every_key() -> None:
    text = PAGE.read_text()
    settings = [load() for table in (built_in_catalog().recipes, built_in_catalog().targets) for load in table.values()]
    names = {path.rpartition(".")[2] for cls in (Job, *settings) for path, _ in keys(cls)} - set(keys_of(TargetEntry))
    assert [name for name in sorted(names) if f"| `{name}` |" not in text] == []


def test_the_words_that_say_where_references_are_expanded_are_true() -> None:
    def expanded(kind: Any) -> bool:
        parts = [part for member in union_members(kind) for part in (member, *get_args(member))]
        return any(EXPANDED in unmarked(part)[1] for part in parts)

    def in_words(path: str) -> str:
        return "data sources" if path.startswith("data.") else "image" if path.startswith("image.") else path

    marked = {in_words(path) for path, kind in keys(Job) if expanded(kind)}
    assert set(WHERE_EXPANDED.replace(" and ", ", ").split(", ")) == marked


@pytest.mark.parametrize("words", ["unknown key 'epocs' in config", "the size 30 has no unit", "not the secret itself"])
def test_the_messages_shown_are_the_ones_that_are_given(words: str, project: Path) -> None:
    text = "name: x\nrecipe: captioning\nconfig: {epocs: 2}\nresources: {memory: 30}\nsecrets: {WANDB_API_KEY: x}\n"
    with pytest.raises(BadJob) as caught:
        loads(text, root=project, catalog=CATALOG)
    assert words in str(caught.value)
    assert words in PAGE.read_text()
