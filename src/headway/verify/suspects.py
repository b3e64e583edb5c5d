"""Lines of a script that draw numbers which no seed of the run fixes. Reads the code, never runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Called without an argument these seed themselves from the system; with one they are generators of the script's own.
GENERATORS = ("Generator", "Philox", "PCG64", "Random", "RandomState", "default_rng", "seed")
# These are different every time, whatever is seeded.
ENTROPY = ("SystemRandom", "getrandbits", "monotonic", "perf_counter", "time_ns", "token_bytes", "token_hex", "urandom",
           "uuid1", "uuid4")  # fmt: skip
# These hold a place in the data that a checkpoint does not know of.
ITERATORS = ("cycle", "iter")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """One line to look at."""

    where: str  # file:line
    code: str
    kind: str  # unseeded, own, iterator


def suspects(files: Iterable[tuple[str, Path]]) -> list[Suspect]:
    """All of them, by file and line. A file that is not Python 3 is passed over: it cannot be what trains."""
    found: list[Suspect] = []
    for name, path in files:
        try:
            text = path.read_text()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue
        lines = text.splitlines()
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        marked = ((call.lineno, kind) for call in calls for kind in _kinds(call))
        found += [
            Suspect(where=f"{name}:{line}", code=lines[line - 1].strip(), kind=kind)
            for line, kind in sorted(set(marked))
        ]
    return found


def _kinds(call: ast.Call) -> Iterator[str]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in ENTROPY:
        yield "unseeded"
    elif called in GENERATORS:
        # torch.Generator takes its seed by a call of its own; its argument, if any, is a device.
        yield "own" if call.args or call.keywords or called == "Generator" else "unseeded"
    elif called in ITERATORS and isinstance(call.func, ast.Name | ast.Attribute):
        yield "iterator"
