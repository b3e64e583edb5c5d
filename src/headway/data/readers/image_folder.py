"""Reader for class folders, with or without split folders above them: train/cat/1.jpg, or cat/1.jpg."""

from __future__ import annotations

from collections.abc import Iterator

from headway.data.readers.base import Bad, Found, Row, Task, is_split_folder, split_name
from headway.data.readers.files import Tree, is_picture


class ClassFolders:
    task: Task = "classes"
    name = "class folders"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def found(self) -> Iterator[Found]:
        for key in self._tree.walk():
            if not is_picture(key):
                continue
            parts = key.split("/")
            split = next((split_name(part) for part in parts[:-2] if is_split_folder(part)), "")
            if len(parts) < 2 or (len(parts) == 2 and is_split_folder(parts[0])):
                yield Bad(row=key, reason="in no class", detail="it lies in no class folder")
            else:
                yield Row(id=key, split=split, pictures={"picture": key}, label=parts[-2])


def looks_like_it(tree: Tree) -> bool:
    """Return whether there are at least two picture folders that are not split folders."""
    classes = {folder.rpartition("/")[2] for folder in tree.survey.folders if folder != "."}
    return sum(not is_split_folder(name) for name in classes) >= 2
