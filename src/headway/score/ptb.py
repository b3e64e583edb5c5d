"""Caption tokens as coco-caption makes them with Stanford's PTB tokenizer 3.4.1, without Java.

The tokens of what stands between two blanks are remembered, so a word seen before costs one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.score.ptb_rules import IN_TWO, NEEDS_CONTEXT, RULES

# Marks that coco-caption drops. Brackets are lower-cased before it looks, so they stay: -lrb-, -rrb-.
_DROPPED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_SOFT_HYPHEN = "\u00ad"
_ROOM = 200_000  # pieces remembered; more than any set of captions has, and some 30 MB


def tokenize(caption: str) -> list[str]:
    """The tokens of one caption. A line break of any kind is a blank: what follows it is not lost."""
    tokens: list[str] = []
    for piece in caption.split():
        known = _PIECES[piece]
        if known is None:
            return _scan(caption)
        tokens += known
    return tokens


def tokenize_all(captions: Iterable[str]) -> list[str]:
    """Captions with their tokens set apart by single blanks."""
    return [" ".join(tokenize(caption)) for caption in captions]


class _Pieces(dict[str, "tuple[str, ...] | None"]):
    """The tokens of each piece of text without a blank; None where they depend on its neighbours."""

    def __missing__(self, piece: str) -> tuple[str, ...] | None:
        if len(self) >= _ROOM:
            self.clear()
        known = self[piece] = _tokens_of(piece)
        return known


_PIECES = _Pieces()


def _tokens_of(piece: str) -> tuple[str, ...] | None:
    if piece.isascii() and piece.isalpha() and not IN_TWO.match(piece):
        return (piece.lower(),)  # most pieces: the rules would say the same
    return None if NEEDS_CONTEXT.match(piece) else tuple(_scan(piece))


def _scan(text: str) -> list[str]:
    """The tokens of a text by the rules: at each place the longest match."""
    text = " ".join(text.replace(_SOFT_HYPHEN, "").split())
    tokens: list[str] = []
    place = 0
    while place < len(text):
        end, rewrite = place, None
        for pattern, change in RULES:
            match = pattern.match(text, place)
            if match and match.end() > end:
                end, rewrite = match.end(), change
        two = IN_TWO.match(text, place)
        if two and two.end() >= end:
            tokens += [part.replace("’", "'").lower() for part in two.groups() if part]
            end = two.end()
        elif rewrite:
            tokens.append(rewrite(text[place:end]).lower())
        place = max(end, place + 1)  # a blank, or a character that is no token
    return [token for token in tokens if token not in _DROPPED]
