"""Caption decoding: greedy, sampling, and beam search over all pictures of a batch, with test-time augmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import Decoder, State
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import END, PAD, START, UNKNOWN

# Test-time augmentation


class MultiViewState(NamedTuple):
    """Decoder states, one per view."""

    states: tuple[State, ...]

    @property
    def looks(self) -> Tensor | None:
        """Return the attention weights of the first view, the unmodified picture."""
        return self.states[0].looks

    def of(self, rows: Tensor) -> MultiViewState:
        return MultiViewState(tuple(state.of(rows) for state in self.states))


class TTADecoder:
    """Wrap a decoder to average log-probabilities over several views (test-time augmentation).

    Views are a dimension after the pictures: (n, views, …). An error of one view prevails only if the other views do
    not contradict it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def start(self, grids: Tensor, rows: int) -> MultiViewState:
        return MultiViewState(tuple(self._decoder.start(grid, rows=rows) for grid in grids.unbind(dim=1)))

    def __call__(self, words: Tensor, state: MultiViewState) -> tuple[Tensor, MultiViewState]:
        scores, after = zip(*(self._decoder(words, of_view) for of_view in state.states), strict=True)
        return torch.stack([view.log_softmax(dim=2) for view in scores]).mean(dim=0), MultiViewState(after)


def decoder_for(decoder: Decoder, grid: Tensor) -> Any:
    """Return the decoder for `grid`: (pictures, cells, channels), or with TTA (pictures, views, cells, channels)."""
    return decoder if grid.dim() == 3 else TTADecoder(decoder)


def views(cfg: Config, pictures: Tensor) -> Tensor:
    """Return pictures (n, 3, side, side), or with `both_sides` each with its mirror image (n, 2, 3, side, side)."""
    return torch.stack([pictures, pictures.flip(-1)], dim=1) if cfg.both_sides else pictures


Choose = Callable[[Tensor], Tensor]  # log-probabilities (rows, words) -> one word per row
_NEG_INF = (PAD, START, UNKNOWN)  # tokens that a caption never contains


class DecodedCaptions(NamedTuple):
    """Captions, one per picture (or, if sampled, several: row r is of picture r // samples)."""

    words: Tensor  # (rows, max_length), padded with PAD after END
    log_probability: Tensor  # (rows,): sum over the words, including END
    looks: Tensor | None  # (rows, max_length, cells): attention weights per word; None without attention
    kept: Tensor | None = None  # (rows, beam, max_length): all final hypotheses of a beam search, best first
    kept_log_probability: Tensor | None = None  # (rows, beam)


@torch.inference_mode()
def caption(
    model: Captioner, pictures: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 0.7
) -> Tensor:
    """Return the caption of each picture as token ids (pictures, max_length), padded with PAD after END."""
    return describe(model, pictures, max_length=max_length, beam=beam, length_penalty=length_penalty).words


@torch.inference_mode()
def describe(
    model: Captioner, pictures: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 0.7
) -> DecodedCaptions:
    """Return captions with log-probabilities and attention weights.

    `pictures` are pixels or the grids of a frozen encoder, optionally with a dimension for several views.
    """
    grid = model.see(pictures)
    if beam == 1:
        return _decode_steps(model, grid, max_length, _greedy)
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
    """Sample `samples` captions per picture by probability. A low temperature favours the likeliest words."""

    def drawn(gains: Tensor) -> Tensor:
        """Sample with one random number per row; torch.multinomial draws one per word of the vocabulary."""
        upto = (gains / temperature).softmax(dim=1).cumsum(dim=1)
        chance = torch.rand(len(upto), 1, generator=generator, device=upto.device) * upto[:, -1:]
        return torch.searchsorted(upto, chance, right=True)[:, 0].clamp(max=upto.shape[1] - 1)

    return _decode_steps(model, model.see(pictures), max_length, drawn, rows_each=samples)


def _greedy(gains: Tensor) -> Tensor:
    return gains.argmax(dim=1)


def _decode_steps(
    model: Captioner, grid: Tensor, max_length: int, choose: Choose, *, rows_each: int = 1
) -> DecodedCaptions:
    """Decode word by word, with `choose` picking each word from the log-probabilities."""
    rows, decoder = len(grid) * rows_each, decoder_for(model.decoder, grid)
    state = decoder.start(grid, rows=rows)
    word = torch.full((rows,), START, device=grid.device)
    sequences = torch.full((rows, max_length), PAD, device=grid.device)
    total = torch.zeros(rows, device=grid.device)
    going = torch.ones(rows, dtype=torch.bool, device=grid.device)
    looks: list[Tensor] = []
    for step in range(max_length):
        scores, state = decoder(word[:, None], state)
        gains = mask_special(scores[:, 0]).log_softmax(dim=1)
        word = choose(gains)
        total = total + gains.gather(1, word[:, None])[:, 0] * going
        sequences[:, step] = torch.where(going, word, PAD)
        if state.looks is not None:
            looks.append(state.looks * going[:, None])
        going = going & (word != END)
        if not going.any():
            break
    return DecodedCaptions(sequences, total, _stacked(looks, max_length))


def _beam(model: Captioner, grid: Tensor, max_length: int, beam: int, length_penalty: float) -> DecodedCaptions:
    """Run a beam search, ranking hypotheses, ended or not, by log-probability / words ^ length_penalty."""
    pictures, device, decoder = len(grid), grid.device, decoder_for(model.decoder, grid)
    state = decoder.start(grid, rows=pictures * beam)
    first_row = torch.arange(pictures, device=device)[:, None] * beam
    sequences = torch.full((pictures, beam, max_length), PAD, device=device)
    total = torch.full((pictures, beam), float("-inf"), device=device)
    total[:, 0] = 0  # all hypotheses start out equal: let only one of them branch
    length = torch.zeros(pictures, beam, device=device)
    word = torch.full((pictures, beam), START, device=device)
    looks: list[Tensor] = []
    for step in range(max_length):
        scores, state = decoder(word.view(-1, 1), state)
        gains = mask_special(scores[:, 0]).log_softmax(dim=1).view(pictures, beam, -1)
        ended = (word == END) | (word == PAD)
        # The best `beam` hypotheses can only extend by one of their own `beam` best words.
        gains, words = gains.topk(min(beam, gains.shape[2]), dim=2)
        totals = total[:, :, None] + _keep_ended(gains, ended)
        lengths = (length + ~ended)[:, :, None]
        best = (totals / lengths.clamp(min=1) ** length_penalty).flatten(1).topk(beam, dim=1).indices
        origin = best // gains.shape[2]
        total = totals.flatten(1).gather(1, best)
        length = lengths[:, :, 0].gather(1, origin)
        sequences = sequences.gather(1, origin[:, :, None].expand(-1, -1, max_length))
        word = torch.where(ended.gather(1, origin), PAD, words.flatten(1).gather(1, best))
        sequences[:, :, step] = word
        rows = (first_row + origin).flatten()
        state = state.of(rows)
        if state.looks is not None:
            looks = [*(past[rows] for past in looks), state.looks * (word.view(-1, 1) != PAD)]
        if bool(((word == END) | (word == PAD)).all()):
            break
    found = _stacked(looks, max_length)
    return DecodedCaptions(sequences[:, 0], total[:, 0], None if found is None else found[::beam], sequences, total)


def mask_special(scores: Tensor) -> Tensor:
    """Mask the scores (rows, words) of tokens that a caption must not contain."""
    return scores.index_fill(1, torch.tensor(_NEG_INF, device=scores.device), float("-inf"))


def _keep_ended(gains: Tensor, ended: Tensor) -> Tensor:
    """Give an ended hypothesis one successor, itself, at no cost, in the first slot."""
    stay = torch.full_like(gains, float("-inf"))
    stay[:, :, 0] = 0
    return torch.where(ended[:, :, None], stay, gains)


def _stacked(looks: list[Tensor], max_length: int) -> Tensor | None:
    if not looks:
        return None
    made = looks[0].new_zeros(len(looks[0]), max_length, looks[0].shape[1])
    made[:, : len(looks)] = torch.stack(looks, dim=1)
    return made
