"""Weights of a bundle into a model: all of them, of the right shapes, or a clear word about what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from headway.bundle.format import AGAIN, Bundle
from headway.core.errors import BadBundle


def fill(model: nn.Module, bundle: Bundle) -> None:
    """The bundle's weights, and the model ready to answer. BadBundle names the first things that do not fit."""
    with fitting(bundle):
        missing, extra = model.load_state_dict(bundle.weights(), strict=False)
    odd = [name for name in (*missing, *extra) if name != "_extra_state"]
    if odd:
        raise _misfit(bundle, ", ".join(odd[:3]))
    model.eval()


@contextmanager
def fitting(bundle: Bundle) -> Iterator[None]:
    """torch's own word for other shapes, translated."""
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise _misfit(bundle, lines[min(1, len(lines) - 1)].strip()) from None


def _misfit(bundle: Bundle, what: str) -> BadBundle:
    return BadBundle(f"its weights do not fit its settings: {what}", where=bundle.url, fix=AGAIN)
