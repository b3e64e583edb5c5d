"""Load a bundle's weights into a model, strictly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from headway.bundle.format import AGAIN, Bundle
from headway.core.errors import BadBundle


def fill(model: nn.Module, bundle: Bundle) -> None:
    """Load all weights and switch to eval mode. Raises BadBundle naming the first keys or shapes that do not match."""
    with fitting(bundle):
        missing, extra = model.load_state_dict(bundle.weights(), strict=False)
    odd = [name for name in (*missing, *extra) if name != "_extra_state"]
    if odd:
        raise _misfit(bundle, ", ".join(odd[:3]))
    model.eval()


@contextmanager
def fitting(bundle: Bundle) -> Iterator[None]:
    """Convert torch's shape-mismatch error to BadBundle."""
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise _misfit(bundle, lines[min(1, len(lines) - 1)].strip()) from None


def _misfit(bundle: Bundle, what: str) -> BadBundle:
    return BadBundle(f"its weights do not fit its settings: {what}", where=bundle.url, fix=AGAIN)
