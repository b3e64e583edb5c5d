"""Flickr8k: `Flickr8k.token.txt` (picture#number, tab, caption) and `Flickr_8k.trainImages.txt` and its siblings."""

from __future__ import annotations

from collections.abc import Iterator

from headway.data.sources.base import Bad, Caption, Found, Row, Task, split_name
from headway.data.sources.tree import Tree, below, decoded
from headway.errors import BadInput


class Flickr8k:
    """Pictures that no list names are in no split, and reported as such."""

    task: Task = "captions"
    name = "Flickr8k"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._folder = _picture_folder(tree)

    def found(self) -> Iterator[Found]:
        splits = self._splits()
        seen = ""
        for number, line in self._tree.lines(token_file(self._tree)):
            text = decoded(line)
            if text is None:
                yield Bad(row=f"line {number}", reason="not UTF-8")
                continue
            if not text.strip():
                continue
            head, tab, caption = text.partition("\t")
            name = head.partition("#")[0]
            if not tab or not name:
                yield Bad(row=f"line {number}", reason="wrong format", detail="no tab between picture and caption")
                continue
            if name != seen:  # the five captions of a picture follow each other
                yield self._row(name, splits)
                seen = name
            yield Caption(row=name, text=caption)

    def _row(self, name: str, splits: dict[str, str]) -> Found:
        if splits and name not in splits:
            return Bad(row=name, reason="in no split", detail="none of the split lists names it", fault=False)
        try:
            return Row(
                id=name, split=splits.get(name, ""), pictures={"picture": self._folder + below(name)}, again=True
            )
        except BadInput as error:
            return Bad(row=name, reason="path leads outside", detail=error.problem.what)

    def _splits(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in self._tree.survey.documents:
            split = split_name(key.rpartition("/")[2])
            if key.lower().endswith("images.txt") and split:
                for _, line in self._tree.lines(key):
                    name = (decoded(line) or "").strip()
                    if name:
                        found[name] = split
        return found


def token_file(tree: Tree) -> str:
    """The one with all captions, not the lemmatised one; empty if there is none."""
    names = [key for key in tree.survey.documents if key.lower().endswith(".token.txt") and "lemma" not in key.lower()]
    return min(names, key=len) if names else ""


def _picture_folder(tree: Tree) -> str:
    folders = sorted(
        tree.survey.folders, key=lambda f: ("image" not in f.lower() and "dataset" not in f.lower(), len(f))
    )
    return "" if not folders or folders[0] == "." else folders[0] + "/"
