"""What may be said of a scene: every valid caption, and the five that are its references. Needs nothing."""

from __future__ import annotations

from headway.data.scenes.compose import GENERATION, SPLITS, Draws
from headway.data.scenes.model import COLUMNS, COUNTS, REFERENCES, ROWS, Scene, Thing

_OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
_WORDINGS = {
    "above": ("above",),
    "below": ("below", "under"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
}


def captions(scene: Scene) -> tuple[str, ...]:
    """Every caption the grammar has for this scene: saying any one of them is right, saying anything else is wrong."""
    if scene.kind == "one":
        return _one(scene.things[0])
    if scene.kind == "several":
        return _several(scene.things[0], scene.group)
    return _related(scene)


def references(scene: Scene) -> tuple[str, ...]:
    """Five different ones of them, the same five for the same scene every time."""
    draws = Draws(GENERATION, 7, SPLITS.index(scene.split), scene.index)
    return tuple(draws.sample(captions(scene), REFERENCES))


def _one(thing: Thing) -> tuple[str, ...]:
    what = f"{thing.size} {thing.colour} {thing.shape}"
    where = _place(thing)
    return (
        f"a {what} {where}",
        f"one {what} {where}",
        f"there is a {what} {where}",
        f"{where} there is a {what}",
        f"{where} is a {what}",
        f"a picture of a {what} {where}",
    )


def _several(thing: Thing, count: int) -> tuple[str, ...]:
    what, number = f"{thing.size} {thing.colour} {thing.shape}{_plural(thing)}", COUNTS[count - 1]
    return (
        f"{number} {what}",
        f"there are {number} {what}",
        f"a picture of {number} {what}",
        f"a group of {number} {what}",
        f"{number} {thing.colour} {thing.shape}{_plural(thing)} that are {thing.size}",
        f"we see {number} {what}",
    )


def _related(scene: Scene) -> tuple[str, ...]:
    """Said from either side: what is left of one thing has it to its right."""
    group, other = scene.things[0], scene.things[-1]
    relation = _relation(scene)
    one = f"{_article(other.colour)} {other.colour} {other.shape}"
    many = f"{_article(group.colour)} {group.colour} {group.shape}"
    if scene.group > 1:
        many = f"{COUNTS[scene.group - 1]} {group.colour} {group.shape}{_plural(group)}"
    said = []
    for subject, link, thing, verb in (
        (many, relation, one, "is" if scene.group == 1 else "are"),
        (one, _OPPOSITE[relation], many, "is"),
    ):
        for wording in _WORDINGS[link]:
            said += [
                f"{subject} {wording} {thing}",
                f"{subject} {verb} {wording} {thing}",
                f"there {verb} {subject} {wording} {thing}",
            ]
    return tuple(said)


def _relation(scene: Scene) -> str:
    """Where the first things are, seen from the last. All of them in another row than it: above or below."""
    group, other = scene.things[: scene.group], scene.things[-1]
    rows = {thing.row for thing in group}
    if len(rows) == 1 and other.row not in rows:
        return "above" if group[0].row < other.row else "below"
    return "left of" if group[0].column < other.column else "right of"


def _place(thing: Thing) -> str:
    row, column = ROWS[thing.row], COLUMNS[thing.column]
    if row == column == "middle":
        return "in the middle"
    if column == "middle":
        return f"at the {row}"
    if row == "middle":
        return f"on the {column}"
    return f"at the {row} {column}"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _plural(thing: Thing) -> str:
    return "es" if thing.shape == "cross" else "s"
