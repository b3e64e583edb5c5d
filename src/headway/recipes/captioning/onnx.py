"""ONNX export of a captioner as two graphs: `see` (picture to the first word's scores) and `say` (next word's scores).

A search loops over a changing set of captions, which does not fit a static graph. So the search stays in the calling
program, which calls `say` once per caption and word with the state that the last call returned. One picture and one
caption at a time; any search algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headway.artifacts.onnx import BATCH, Graph
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import START

DECODE_STEPS = "said"  # name of the dynamic dimension: number of words so far, if the state grows with them


class EncoderGraph(nn.Module):
    """Maps a picture to the scores of the first word and the state after it."""

    def __init__(self, model: Captioner) -> None:
        super().__init__()
        self.model = model

    def forward(self, picture: Tensor) -> tuple[Tensor, ...]:
        start = torch.full((1, 1), START, device=picture.device)
        scores, state = self.model.decoder(start, self.model.decoder.start(self.model.see(picture), rows=1))
        return scores[:, 0], *leaves(state)


class DecoderGraph(nn.Module):
    """Maps the last word and the state to the scores of the next word and the changed parts of the state."""

    def __init__(self, model: Captioner, like: Any, changing: list[bool]) -> None:
        super().__init__()
        self.model, self._like, self._changing = model, like, changing

    def forward(self, word: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        scores, after = self.model.decoder(word, rebuilt(self._like, iter(state)))
        changed = (leaf for leaf, changes in zip(leaves(after), self._changing, strict=True) if changes)
        return scores[:, 0], *changed


def graphs(model: Captioner, cfg: Config) -> list[Graph]:
    """Return the graphs `see` and `say`.

    Input state_N of `say` is output state_N of `see`, or next_state_N of the last `say` if that graph returns it.
    """
    model.eval()
    picture, word = _picture(cfg, model), torch.tensor([[START + 4]])
    with torch.no_grad():
        grid = model.see(picture)
        _, first = model.decoder(torch.full((1, 1), START), model.decoder.start(grid, rows=1))
        _, second = model.decoder(word, first)
        _, third = model.decoder(word, second)
    before, after, later = leaves(first), leaves(second), leaves(third)
    changing = [one is not other for one, other in zip(before, after, strict=True)]
    names = [f"state_{number}" for number in range(len(before))]
    grows = {
        name: {at: DECODE_STEPS for at, (one, other) in enumerate(zip(a.shape, b.shape, strict=True)) if one != other}
        for name, a, b in zip(names, before, after, strict=True)
    }
    see = Graph(
        name="see",
        module=EncoderGraph(model),
        inputs={"picture": picture},
        outputs=("scores", *names),
        about="an RGB picture, its middle square, to the scores of the first word; words are in vocabulary.json",
    )
    say = Graph(
        name="say",
        module=DecoderGraph(model, first, changing),
        inputs={"word": word, **dict(zip(names, after, strict=True))},
        outputs=("scores", *(f"next_{name}" for name, changes in zip(names, changing, strict=True) if changes)),
        dynamic={name: dims for name, dims in grows.items() if dims},
        at_most={DECODE_STEPS: cfg.max_length},
        more=[{"word": word + 1, **dict(zip(names, state, strict=True))} for state in (before, later)],
        about="the last word and the state, to the scores of the next word; next_state_N is state_N next time",
    )
    return [see, say]


def example_picture(model: Captioner, cfg: Config) -> Graph:
    """Return the graph of the encoder alone, with a dynamic batch size, for a server that runs it outside torch."""
    model.eval()
    pictures = _picture(cfg, model).repeat(2, 1, 1, 1)
    pictures[1] = pictures[1].flip(-1)
    with torch.no_grad():
        model.see(pictures)  # trigger lazy initialization before tracing
    return Graph(
        name="look",
        module=model.encoder,
        inputs={"picture": pictures},
        outputs=("grid",),
        dynamic={"picture": {0: BATCH}},
        more=[{"picture": pictures[:1].repeat(3, 1, 1, 1)}],
        about="RGB pictures, their middle squares, to a grid of features each",
    )


def leaves(state: Any) -> list[Tensor]:
    """Return the tensors of nested tuples, in order, without `looks`, which is output only."""
    return list(_walk(state._replace(looks=None)))


def _walk(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _walk(each)


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    """Rebuild the nested tuples of `like` around other tensors."""
    if isinstance(like, Tensor):
        return next(tensors)
    if not isinstance(like, tuple):
        return like
    kind: Any = type(like)
    if not hasattr(kind, "_fields"):
        return tuple(rebuilt(each, tensors) for each in like)
    return kind(*(None if name == "looks" else rebuilt(getattr(like, name), tensors) for name in kind._fields))


def _picture(cfg: Config, model: Captioner) -> Tensor:
    """Return a drawn scene as example input: noise would give overconfident output that hides numerical differences."""
    from PIL import Image

    from headway.data.synthetic import scenes

    side = int(cfg.side)
    pixels = Image.fromarray(scenes.draw(scenes.compose("test", 3))).resize((side, side))
    return torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).view(1, side, side, 3).permute(0, 3, 1, 2)
