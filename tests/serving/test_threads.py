"""The number of threads that answers fastest is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("starlette")

from headway.artifacts.predictor import Answer, Field, Instance, open_service  # noqa: E402
from headway.bundle.format import Bundle  # noqa: E402
from headway.plugins import RECIPES  # noqa: E402
from headway.serving import batching  # noqa: E402
from tests.serving.test_services import MADE  # noqa: E402


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


class Slowed:
    """Slow but for one number of threads."""

    fields = (Field(name="text", kind="text", summary=""),)

    def __init__(self, best: int) -> None:
        self._best = best

    def prepare(self, instance: Instance) -> Any:
        return instance["text"]

    def answer(self, prepared: Sequence[Any], *, explain: bool) -> list[Answer]:
        if torch.get_num_threads() != self._best:
            time.sleep(0.05)
        return [{"text": each} for each in prepared]


@pytest.mark.parametrize("best", [1, 2, 4])
def test_the_fastest_is_kept_and_said(best: int) -> None:
    assert batching.choose_thread_count(Slowed(best)).startswith(f"{best} of 4: ")
    assert torch.get_num_threads() == best


def test_what_the_user_has_set_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert batching.choose_thread_count(Slowed(1)) == "4, from OMP_NUM_THREADS"
    assert torch.get_num_threads() == 4


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_takes_the_made_up_input(recipe: str, tmp_path: Path) -> None:
    service = open_service(Bundle.open(str(MADE[recipe](tmp_path / "bundle"))))
    assert " of 4: " in batching.choose_thread_count(service)
