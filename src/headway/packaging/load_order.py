"""Determine whether a program loads saved state before it trains, or only afterwards, to evaluate its best weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

# What updates weights: the backward pass, or a whole training by a framework.
_TRAINS = re.compile(r"(^|\.)(backward|fit|train_on_batch|apply_gradients|fit_generator|minimize)$")
_LOADS = re.compile(
    r"(^|\.)((torch|pickle|joblib|dill|np|numpy|jit)\.load|load_\w+|from_checkpoint|from_bytes|tree_deserialise_leaves)$"
)
_MODES = {"train", "eval"}  # of a module: `model.train()` is not the project's own function
_MAX_EVENTS = 5000

_LOAD, _TRAIN = "load", "train"


def loads_only_after_training(texts: Iterable[str], entry: str) -> bool:
    """Return whether every load that a program's code reaches follows the first update of its weights.

    Follows the calls of functions and classes by name, from the first of `texts` whose top level is executed (`entry`),
    in the order of the source; both sides of a condition count. Returns False if the order cannot be determined.
    """
    try:
        trees = [ast.parse(text) for text in texts]
        start = ast.parse(entry)
    except (SyntaxError, ValueError, RecursionError):
        return False
    order = _Order([*trees, start])
    events = order.of(start.body)
    if _TRAIN not in events:
        return False
    return _LOAD not in events[: events.index(_TRAIN)] and order.visited_all_loads()


class _Order:
    """The loads and trainings of a program in the order in which its code reaches them."""

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self._bodies: dict[str, list[list[ast.stmt]]] = {}
        self._loading: set[str] = set()  # functions with a load in them
        self._entered: set[str] = set()
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._bodies.setdefault(node.name, []).append(node.body)
                    if any(isinstance(inner, ast.Call) and _is_load(inner) for inner in ast.walk(node)):
                        self._loading.add(node.name)
                elif isinstance(node, ast.ClassDef):
                    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                    constructors = [each.body for each in methods if each.name in ("__init__", "__post_init__")]
                    self._bodies.setdefault(node.name, []).extend(constructors)

    def of(self, body: Sequence[ast.stmt]) -> list[str]:
        events: list[str] = []
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for call in _calls(statement):
                self._visit(call, events)
            if len(events) > _MAX_EVENTS:
                break
        return events

    def visited_all_loads(self) -> bool:
        """Return whether each function with a load was entered: one that was not may be called by another way."""
        return self._loading <= self._entered

    def _visit(self, call: ast.Call, events: list[str]) -> None:
        name = _name(call.func)
        owner, _, short = name.rpartition(".")
        if short in self._bodies and not (owner and short in _MODES):
            if short not in self._entered:
                self._entered.add(short)
                for body in self._bodies[short]:
                    events += self.of(body)
        elif _TRAINS.search(name):
            events.append(_TRAIN)
        elif _is_load(call):
            events.append(_LOAD)


def _is_load(call: ast.Call) -> bool:
    return bool(_LOADS.search(_name(call.func)))


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls below a node, arguments before the call that takes them; not those in nested definitions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))
