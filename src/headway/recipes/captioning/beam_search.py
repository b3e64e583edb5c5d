"""From scores to sentences: greedy, sampled, or a beam search over all pictures of a batch at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, State
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import END, PAD, START, UNKNOWN

# Several views of a picture and one caption: every word is judged by all of them together.
#
# Views stand in a dimension after that of the pictures: (n, views, …). Their log-probabilities are averaged, so what
# one view mistakes for something else is said only where the others do not object.


class BatchedDecoder(NamedTuple):
    """The state of each view."""

    states: tuple[State, ...]

    @property
    def looks(self) -> Tensor | None:
        """Of the first view, which is the picture as it is."""
        return self.states[0].looks

    def of(self, rows: Tensor) -> BatchedDecoder:
        return BatchedDecoder(tuple(state.of(rows) for state in self.states))


class TTADecoder:
    """A decoder that is asked as one is that knows of one view alone."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def start(self, grids: Tensor, rows: int) -> BatchedDecoder:
        return BatchedDecoder(tuple(self._decoder.start(grid, rows=rows) for grid in grids.unbind(dim=1)))

    def __call__(self, words: Tensor, state: BatchedDecoder) -> tuple[Tensor, BatchedDecoder]:
        scores, after = zip(*(self._decoder(words, of_view) for of_view in state.states), strict=True)
        return torch.stack([view.log_softmax(dim=2) for view in scores]).mean(dim=0), BatchedDecoder(after)


def asked(decoder: Decoder, grid: Tensor) -> Any:
    """Who to ask about `grid` (pictures, cells, channels), or (pictures, views, cells, channels)."""
    return decoder if grid.dim() == 3 else TTADecoder(decoder)


def views(cfg: Config, pictures: Tensor) -> Tensor:
    """Pictures (n, 3, side, side) as they are to be judged; of both sides, (n, 2, 3, side, side)."""
    return torch.stack([pictures, pictures.flip(-1)], dim=1) if cfg.both_sides else pictures


Choose = Callable[[Tensor], Tensor]  # from log-probabilities (rows, words) to a word a row
_NEVER = (PAD, START, UNKNOWN)  # what no caption says


class DecodedCaptions(NamedTuple):
    """Captions, one a picture (or, sampled, several: row r is of picture r // samples)."""

    words: Tensor  # (rows, max_length), filled up with PAD after END
    log_probability: Tensor  # (rows,): the sum over the words, END included
    looks: Tensor | None  # (rows, max_length, cells): where it looked for each word; None if the decoder does not look
    kept: Tensor | None = None  # (rows, beam, max_length): all that a beam search kept to the end, the best first
    kept_log_probability: Tensor | None = None  # (rows, beam)


@torch.inference_mode()
def caption(
    model: Captioner, pictures: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 0.7
) -> Tensor:
    """The words said of each picture, as numbers (pictures, max_length), filled up with PAD after END."""
    return describe(model, pictures, max_length=max_length, beam=beam, length_penalty=length_penalty).words


@torch.inference_mode()
def describe(
    model: Captioner, pictures: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 0.7
) -> DecodedCaptions:
    """The same, with how sure the model is and where it looked.

    Of pictures, or the grids of a frozen encoder; of several views each, where they have a dimension of their own.
    """
    grid = model.see(pictures)
    if beam == 1:
        return _one_by_one(model, grid, max_length, _surest)
    return _beam(model, grid, max_length, beam, length_penalty)


@torch.inference_mode()
def sample(
    model: Captioner,
    pictures: Tensor,
    *,
    max_length: int,
    samples: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> DecodedCaptions:
    """`samples` captions of each picture, drawn by their probability; a low temperature draws the surest more often."""

    def drawn(gains: Tensor) -> Tensor:
        """One random number a row, where torch's own multinomial draws one a word of the vocabulary."""
        upto = (gains / temperature).softmax(dim=1).cumsum(dim=1)
        chance = torch.rand(len(upto), 1, generator=generator, device=upto.device) * upto[:, -1:]
        return torch.searchsorted(upto, chance, right=True)[:, 0].clamp(max=upto.shape[1] - 1)

    return _one_by_one(model, model.see(pictures), max_length, drawn, rows_each=samples)


def _surest(gains: Tensor) -> Tensor:
    return gains.argmax(dim=1)


def _one_by_one(
    model: Captioner, grid: Tensor, max_length: int, choose: Choose, *, rows_each: int = 1
) -> DecodedCaptions:
    """Word after word, each chosen from the scores of the next."""
    rows, decoder = len(grid) * rows_each, asked(model.decoder, grid)
    state = decoder.start(grid, rows=rows)
    word = torch.full((rows,), START, device=grid.device)
    said = torch.full((rows, max_length), PAD, device=grid.device)
    total = torch.zeros(rows, device=grid.device)
    going = torch.ones(rows, dtype=torch.bool, device=grid.device)
    looks: list[Tensor] = []
    for step in range(max_length):
        scores, state = decoder(word[:, None], state)
        gains = sayable(scores[:, 0]).log_softmax(dim=1)
        word = choose(gains)
        total = total + gains.gather(1, word[:, None])[:, 0] * going
        said[:, step] = torch.where(going, word, PAD)
        if state.looks is not None:
            looks.append(state.looks * going[:, None])
        going = going & (word != END)
        if not going.any():
            break
    return DecodedCaptions(said, total, _stacked(looks, max_length))


def _beam(model: Captioner, grid: Tensor, max_length: int, beam: int, length_penalty: float) -> DecodedCaptions:
    """Keep the `beam` best captions of each picture, ended or not, by log-probability / words ^ length_penalty."""
    pictures, device, decoder = len(grid), grid.device, asked(model.decoder, grid)
    state = decoder.start(grid, rows=pictures * beam)
    first_row = torch.arange(pictures, device=device)[:, None] * beam
    said = torch.full((pictures, beam, max_length), PAD, device=device)
    total = torch.full((pictures, beam), float("-inf"), device=device)
    total[:, 0] = 0  # all captions of a picture begin alike: let one of them branch out
    length = torch.zeros(pictures, beam, device=device)
    word = torch.full((pictures, beam), START, device=device)
    looks: list[Tensor] = []
    for step in range(max_length):
        scores, state = decoder(word.view(-1, 1), state)
        gains = sayable(scores[:, 0]).log_softmax(dim=1).view(pictures, beam, -1)
        ended = (word == END) | (word == PAD)
        # No caption that wins can go on with a word that is not among its own best.
        gains, words = gains.topk(min(beam, gains.shape[2]), dim=2)
        totals = total[:, :, None] + _ended_stay(gains, ended)
        lengths = (length + ~ended)[:, :, None]
        best = (totals / lengths.clamp(min=1) ** length_penalty).flatten(1).topk(beam, dim=1).indices
        origin = best // gains.shape[2]
        total = totals.flatten(1).gather(1, best)
        length = lengths[:, :, 0].gather(1, origin)
        said = said.gather(1, origin[:, :, None].expand(-1, -1, max_length))
        word = torch.where(ended.gather(1, origin), PAD, words.flatten(1).gather(1, best))
        said[:, :, step] = word
        rows = (first_row + origin).flatten()
        state = state.of(rows)
        if state.looks is not None:
            looks = [*(past[rows] for past in looks), state.looks * (word.view(-1, 1) != PAD)]
        if bool(((word == END) | (word == PAD)).all()):
            break
    found = _stacked(looks, max_length)
    return DecodedCaptions(said[:, 0], total[:, 0], None if found is None else found[::beam], said, total)


def sayable(scores: Tensor) -> Tensor:
    """Scores (rows, words) with which only what a caption can say is ever said."""
    return scores.index_fill(1, torch.tensor(_NEVER, device=scores.device), float("-inf"))


def _ended_stay(gains: Tensor, ended: Tensor) -> Tensor:
    """An ended caption has one successor, itself, and it costs nothing. It is filed under the first."""
    stay = torch.full_like(gains, float("-inf"))
    stay[:, :, 0] = 0
    return torch.where(ended[:, :, None], stay, gains)


def _stacked(looks: list[Tensor], max_length: int) -> Tensor | None:
    if not looks:
        return None
    made = looks[0].new_zeros(len(looks[0]), max_length, looks[0].shape[1])
    made[:, : len(looks)] = torch.stack(looks, dim=1)
    return made
