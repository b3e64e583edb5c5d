"""What a type cannot say: keys that exclude each other, names that are taken, secrets in the wrong place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from headway.core.errors import Problem
from headway.spec.model import Image, Job, Mount

# The document: a tree of values that remember where they stand. Files, overrides and plans all become one.

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """One value. `where` is file:line:column, or the override or the path it came from."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    where: str
    key: str = ""  # where its key stands, if it is a member of a mapping
    text: str = ""  # the scalar as it was typed, before it became a number
    loose: bool = False  # from the command line, where nobody quotes: a text field takes `text`
    literal: bool = False  # a text as it is: `${env:NAME}` and `$NAME` in it stay

    @property
    def key_or_value(self) -> str:
        """Where to point for a problem with the key itself."""
        return self.key or self.where


def members(node: Node) -> dict[str, Node]:
    """A mapping's members; none if it is something else, which somebody else reports."""
    return node.value if isinstance(node.value, dict) else {}


def tree_of(plain: Any, where: str) -> Node:
    """Plain JSON as a tree, each value placed by its path: what `dump` wrote is read by the same reader."""
    if isinstance(plain, Mapping):
        return Node({str(key): tree_of(value, f"{where}.{key}") for key, value in plain.items()}, where)
    if isinstance(plain, (list, tuple)):
        return Node(tuple(tree_of(value, f"{where}.{i}") for i, value in enumerate(plain)), where)
    return Node(plain, where, text=str(plain))


# Rules that span several keys

# How many ranks a job asks for.


def processes(job: Job) -> int:
    """Ranks on each node: one for each accelerator, or one."""
    if job.resources.processes != "auto":
        return job.resources.processes
    return job.resources.accelerator.count if job.resources.accelerator else 1


# Of these keys a mapping must have exactly one.
ONE_OF: dict[type, tuple[str, ...]] = {Job: ("recipe", "script"), Mount: ("nfs", "pvc", "path")}

# The second makes no sense beside the first.
NOT_BESIDE: dict[type, tuple[tuple[str, str, str], ...]] = {
    Job: (("recipe", "args", "write the recipe's settings under config"),),
    Image: (
        ("uri", "base", "remove one: `uri` is used as it is, `base` is built upon"),
        ("uri", "repository", "remove one: `uri` is used as it is, what is built goes to `repository`"),
    ),
}

SET_BY_HEADWAY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY|SECRET_?KEY|SECRET|PASSWORD|PASSWD|AUTH_?TOKEN|ACCESS_?TOKEN|HF_TOKEN)$",
    re.IGNORECASE,
)
_REFERENCED = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def conflicts(cls: type, given: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(what, key, fix) for keys that are missing or too many; an empty key means the mapping as a whole."""
    given = list(given)
    choice = ONE_OF.get(cls, ())
    chosen = [name for name in given if name in choice]
    if choice and not chosen:
        yield f"one of {_join_names(choice)} is missing", "", f"add {choice[0]}: … or {choice[1]}: …"
    for first, second in combinations(chosen, 2):
        yield f"both {first} and {second} are given", second, "keep one of the two"
    for first, second, fix in NOT_BESIDE.get(cls, ()):
        if first in given and second in given:
            yield f"{second} cannot be used together with {first}", second, fix


def _join_names(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def job_problems(tree: Node) -> Iterator[Problem]:
    """What is wrong across keys. Looks at the tree, so that a problem elsewhere hides nothing here."""
    job = members(tree)
    env, secrets = _under(job, "env"), _under(job, "secrets")
    yield from _variables(env, "env")
    yield from _variables(secrets, "secrets")
    yield from _plaintext_secrets(env)
    for name in secrets:
        if name in env:
            what = f"{name} stands in env and in secrets"
            yield Problem(what=what, where=secrets[name].key_or_value, fix="keep one of the two")
    yield from _repeated(job.get("phases"), "name", "phases")
    yield from _repeated(job.get("mounts"), "at", "mounts")


def _under(job: dict[str, Node], key: str) -> dict[str, Node]:
    return members(job[key]) if key in job else {}


def _variables(given: dict[str, Node], path: str) -> Iterator[Problem]:
    for name, node in given.items():
        if name in SET_BY_HEADWAY or name.startswith("HEADWAY_"):
            yield Problem(what=f"{path}: {name} is set by Headway", where=node.key_or_value, fix="remove it")


def _plaintext_secrets(env: dict[str, Node]) -> Iterator[Problem]:
    """A value in `env` is written into the plan and the run folder, for everybody who can read them."""
    for name, node in env.items():
        held = [name] if node.literal else [name, *_REFERENCED.findall(node.text)]
        secret = next((each for each in held if _SECRET_NAME.search(each)), None)
        if secret:
            what = f"env.{name} looks like a secret, and everybody who can read the run could read it"
            yield Problem(what=what, where=node.where, fix=f"write it under secrets, as {name}: env:{secret}")


def _repeated(entries: Node | None, key: str, path: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for entry in entries.value if entries and isinstance(entries.value, tuple) else ():
        node = members(entry).get(key)
        if node and node.text in seen:
            what = f"{path}: {key} {node.text} is given twice"
            yield Problem(what=what, where=node.where, fix=f"give each its own {key}")
        elif node:
            seen.add(node.text)


# Did you mean …? Costs an import of difflib, only when something was mistyped.


LONGEST = 60  # nobody mistypes more: comparing is quadratic in the length


def closest_name(typed: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if any."""
    if len(typed) > LONGEST:
        return None
    from difflib import get_close_matches

    by_letters = {_letters(name): name for name in known}
    near = get_close_matches(_letters(typed), by_letters, n=1, cutoff=0.6)
    return by_letters[near[0]] if near else None


def _letters(name: str) -> str:
    """Case, dashes and underscores are what is confused most."""
    return name.lower().replace("-", "").replace("_", "")
