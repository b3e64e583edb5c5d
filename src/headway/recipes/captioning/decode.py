"""From scores to sentences: greedy, or a beam search over all pictures of a batch at once."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.words import END, PAD, START, UNKNOWN

_NEVER = (PAD, START, UNKNOWN)  # what no caption says


@torch.inference_mode()
def caption(
    model: Captioner, pictures: Tensor, *, max_length: int, beam: int = 1, length_penalty: float = 0.7
) -> Tensor:
    """The words said of each picture, as numbers (pictures, max_length), filled up with PAD after END."""
    grid = model.encoder(pictures)
    if beam == 1:
        return _greedy(model, grid, max_length)
    return _beam(model, grid, max_length, beam, length_penalty)


def _greedy(model: Captioner, grid: Tensor, max_length: int) -> Tensor:
    memory = model.decoder.start(grid, rows=len(grid))
    word = torch.full((len(grid),), START, device=grid.device)
    said = torch.full((len(grid), max_length), PAD, device=grid.device)
    going = torch.ones(len(grid), dtype=torch.bool, device=grid.device)
    for step in range(max_length):
        scores, memory = model.decoder(word[:, None], memory)
        word = _sayable(scores[:, 0]).argmax(dim=1)
        said[:, step] = torch.where(going, word, PAD)
        going &= word != END
        if not going.any():
            break
    return said


def _beam(model: Captioner, grid: Tensor, max_length: int, beam: int, length_penalty: float) -> Tensor:
    """Keep the `beam` best captions of each picture, ended or not, by log-probability / words ^ length_penalty."""
    pictures, device = len(grid), grid.device
    memory = model.decoder.start(grid, rows=pictures * beam)
    first_row = torch.arange(pictures, device=device)[:, None] * beam
    said = torch.full((pictures, beam, max_length), PAD, device=device)
    total = torch.full((pictures, beam), float("-inf"), device=device)
    total[:, 0] = 0  # all captions of a picture begin alike: let one of them branch out
    length = torch.zeros(pictures, beam, device=device)
    word = torch.full((pictures, beam), START, device=device)
    for step in range(max_length):
        scores, memory = model.decoder(word.view(-1, 1), memory)
        gains = _sayable(scores[:, 0]).log_softmax(dim=1).view(pictures, beam, -1)
        ended = (word == END) | (word == PAD)
        totals = total[:, :, None] + _ended_stay(gains, ended)
        lengths = (length + ~ended)[:, :, None]
        best = (totals / lengths.clamp(min=1) ** length_penalty).flatten(1).topk(beam, dim=1).indices
        origin, chosen = best // gains.shape[2], best % gains.shape[2]
        total = totals.flatten(1).gather(1, best)
        length = lengths[:, :, 0].gather(1, origin)
        said = said.gather(1, origin[:, :, None].expand(-1, -1, max_length))
        word = torch.where(ended.gather(1, origin), PAD, chosen)
        said[:, :, step] = word
        memory = memory.of((first_row + origin).flatten())
        if bool(((word == END) | (word == PAD)).all()):
            break
    return said[:, 0]


def _sayable(scores: Tensor) -> Tensor:
    return scores.index_fill(1, torch.tensor(_NEVER, device=scores.device), float("-inf"))


def _ended_stay(gains: Tensor, ended: Tensor) -> Tensor:
    """An ended caption has one successor, itself, and it costs nothing. It is filed under END."""
    stay = torch.full_like(gains, float("-inf"))
    stay[:, :, END] = 0
    return torch.where(ended[:, :, None], stay, gains)
