"""Beam search over a batch of pictures, against the loop of common tutorials. Promised: 5 × less time per picture.

The other implementation captions one picture at a time, repeats its grid for every candidate caption, and projects it
again at every word. Both use the same decoder (Show, Attend and Tell, 512 wide, 9,490 words) and the same grids (14 ×
14 × 2048, as from a ResNet-101 at 448 pixels), and must produce the same captions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.harness import Row, interleave, note, show
from headway.recipes.captioning.beam_search import describe
from headway.recipes.captioning.config import Config
from headway.recipes.captioning.decoders import AttentionDecoder
from headway.recipes.captioning.model import Captioner
from headway.recipes.captioning.vocabulary import END, PAD, SPECIAL, START, UNKNOWN, Vocabulary

PICTURES, CELLS, CHANNELS, WORDS, LENGTH = 16, 196, 2048, 9_490, 12
PENALTY = 0.7
REPEATS = 3
FEW = 4  # pictures are enough to time one after the other
PROMISE = 5.0


class Seen(nn.Module):
    """Stands for an encoder: the benchmark begins where its work is done."""

    cells, channels = CELLS, CHANNELS


def captioner() -> Captioner:
    torch.manual_seed(0)
    cfg = Config(decoder="attention", embedding_size=512, hidden_size=512, attention_size=512, max_length=LENGTH)
    model = Captioner(cfg, Vocabulary([*SPECIAL, *(f"w{n}" for n in range(WORDS - 4))]))
    model.encoder = Seen()
    model.decoder = AttentionDecoder(cfg, WORDS, CELLS, CHANNELS)
    return model.eval()


@torch.inference_mode()
def one_by_one(decoder: AttentionDecoder, grids: Tensor, beam: int) -> list[list[int]]:
    return [loop(decoder, grid, beam) for grid in grids]


def loop(decoder: AttentionDecoder, grid: Tensor, beam: int) -> list[int]:
    """One picture, its captions as Python lists, its grid projected at every word."""
    rows: list[tuple[float, list[int]]] = [(0.0, [])]
    state = decoder.start(grid[None], rows=1).layers
    for _ in range(LENGTH):
        again = decoder.start(grid.expand(len(rows), -1, -1), rows=len(rows))._replace(layers=state)
        word = torch.tensor([[said[-1] if said else START] for _, said in rows])
        scores, after = decoder(word, again)
        scores[:, :, [PAD, START, UNKNOWN]] = float("-inf")
        gains = scores[:, 0].log_softmax(dim=1)
        found: list[tuple[float, list[int], int]] = []
        for number, (total, said) in enumerate(rows):
            if said and said[-1] == END:
                found.append((total, said, number))
                continue
            best = gains[number].topk(beam)
            for gain, chosen in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                found.append((total + gain, [*said, chosen], number))
        found.sort(key=lambda one: one[0] / len(one[1]) ** PENALTY, reverse=True)
        rows = [(total, said) for total, said, _ in found[:beam]]
        keep = torch.tensor([number for _, _, number in found[:beam]])
        state = after.of(keep).layers
        if all(said[-1] == END for _, said in rows):
            break
    return rows[0][1]


@torch.inference_mode()
def no_search(decoder: AttentionDecoder, grids: Tensor, beam: int) -> None:
    """What a search cannot be faster than: as many words of as many captions through the decoder, none compared."""
    state = decoder.start(grids, rows=len(grids) * beam)
    word = torch.full((len(grids) * beam, 1), START)
    for _ in range(LENGTH):
        _, state = decoder(word, state)


def main() -> int:
    model, worst = captioner(), float("inf")
    assert isinstance(model.decoder, AttentionDecoder)
    grids = torch.rand(PICTURES, CELLS, CHANNELS, generator=torch.Generator().manual_seed(1))
    for beam in (1, 3, 5):

        def ours(beam: int = beam) -> list[list[int]]:
            said = describe(model, grids, max_length=LENGTH, beam=beam, length_penalty=PENALTY).words
            return [[word for word in row if word != PAD] for row in said.tolist()]

        def rival(beam: int = beam) -> list[list[int]]:
            assert isinstance(model.decoder, AttentionDecoder)
            return one_by_one(model.decoder, grids[:FEW], beam)

        def limit(beam: int = beam) -> None:
            assert isinstance(model.decoder, AttentionDecoder)
            no_search(model.decoder, grids, beam)

        same = sum(one == other for one, other in zip(ours()[:FEW], rival(), strict=True))
        cases = {"Headway, 16 at once": ours, "picture by picture": rival, "no search (the limit)": limit}
        many = (PICTURES, FEW, PICTURES)
        times = interleave(cases, REPEATS)
        rows = [Row(row.name, tuple(s / n for s in row.seconds)) for row, n in zip(times, many, strict=True)]
        for row in rows[:2]:
            told = {"limit": "the decoder's steps alone", "floor": rows[2].median * 1e3} if row is rows[0] else {}
            note(f"a picture, beam {beam}", row.name, row.median * 1e3, "ms", **told)  # type: ignore[arg-type]
        ratio = rows[1].median / rows[0].median
        worst = min(worst, ratio)
        print(f"\nbeam {beam}: {same} of {FEW} captions alike, ms a picture, {ratio:.1f} × faster\n")
        print(show(rows, "Headway, 16 at once", unit_s=1e-3), flush=True)
    verdict = "kept" if worst >= PROMISE else "NOT kept"
    print(f"\n{PROMISE:.0f} × promised, {worst:.1f} × at the least: {verdict}")
    return 0 if worst >= PROMISE else 1
