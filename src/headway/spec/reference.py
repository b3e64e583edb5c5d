"""The tables of docs/job-file.md, from the same annotations: `python -m headway.spec.reference docs/job-file.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

from headway.spec.catalog import Catalog, shipped
from headway.spec.comments import field_comments, summary
from headway.spec.kinds import Key, described, is_list, is_mapping, keys_of, union_members, unmarked
from headway.spec.model import Accelerator, Cadence, Job, TargetEntry
from headway.spec.schema import typed_default

BEGIN, END = "<!-- keys: begin (generated) -->", "<!-- keys: end -->"


def tables(catalog: Catalog) -> str:
    """One table for the job, one for each mapping inside it, one for each recipe and kind of target."""
    inside: dict[Any, list[str]] = {}
    for path, cls in _nested(Job, ""):
        inside.setdefault(cls, []).append(f"`{path}`")
    sections: list[tuple[str, Any]] = [("The job", Job)]
    sections += [(", ".join(paths), cls) for cls, paths in inside.items()]
    sections += [(f"`config` of `recipe: {name}`", catalog.recipes[name]()) for name in sorted(catalog.recipes)]
    sections += [(f"`targets.NAME` of `kind: {kind}`", catalog.targets[kind]()) for kind in sorted(catalog.targets)]
    return "\n".join(_section(title, cls) for title, cls in sections)


def _nested(cls: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, dataclass) of every mapping inside, as `--set` would spell it."""
    for key in keys_of(cls).values():
        for member in union_members(key.type):
            step = ".N" if is_list(member) else ".NAME" if is_mapping(member) else ""
            here = f"{path}{key.name}{step}"
            inside = next((part for part in (member, *get_args(member)) if is_dataclass(part)), None)
            if inside and inside not in (Accelerator, Cadence, TargetEntry):
                yield here, inside
                yield from _nested(inside, f"{here}.")


def _section(title: str, cls: Any) -> str:
    comments = field_comments(cls)
    rows = [_row(key, comments.get(key.field.name, "")) for key in keys_of(cls).values()]
    words = [summary(cls), ""] if summary(cls) else []
    head = [f"### {title}", "", *words, "| key | what | written as | default |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *(rows or ["| | it has no keys of its own | | |"]), ""])


def _row(key: Key, comment: str) -> str:
    default = "**required**" if key.required else _default(key)
    return f"| `{key.name}` | {_cell(comment)} | {_cell(_written(key.type))} | {default} |"


def _written(annotation: Any) -> str:
    kind, _ = unmarked(annotation)
    if is_list(kind) and not is_dataclass(get_args(kind)[0]):
        return f"a list, each {_written(get_args(kind)[0])}"
    return described(annotation)


def _default(key: Key) -> str:
    value = typed_default(key)
    return "" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def renewed(document: str, catalog: Catalog | None = None) -> str:
    """The document with its generated part made anew."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(catalog or shipped())}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text()))
    sys.stdout.write(f"wrote {page}\n")
