"""Validation across keys: exclusive keys, reserved names, secrets in the wrong place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from headway.core.errors import Problem
from headway.core.program import DATA, PLACEHOLDERS, placeholder_names
from headway.spec.model import Image, Job, Mount

# The document: a tree of values with their positions, made from files, overrides and plans alike.

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value. `where` is file:line:column, or the override or the path it came from."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    where: str
    key: str = ""  # position of its key, if it is a member of a mapping
    text: str = ""  # the scalar as typed, before conversion to a number
    loose: bool = False  # from the command line, where users do not quote: a text field takes `text`
    literal: bool = False  # an unexpanded text: `${env:NAME}` and `$NAME` in it stay

    @property
    def key_or_value(self) -> str:
        """Return the position to report for a problem with the key itself."""
        return self.key or self.where


def members(node: Node) -> dict[str, Node]:
    """Return a mapping's members; none if it is not a mapping, which `validate` reports."""
    return node.value if isinstance(node.value, dict) else {}


def tree_of(plain: Any, where: str) -> Node:
    """Convert plain JSON to a tree, with paths as positions, so that one reader serves job files and plans."""
    if isinstance(plain, Mapping):
        return Node({str(key): tree_of(value, f"{where}.{key}") for key, value in plain.items()}, where)
    if isinstance(plain, (list, tuple)):
        return Node(tuple(tree_of(value, f"{where}.{i}") for i, value in enumerate(plain)), where)
    return Node(plain, where, text=str(plain))


# Rules that span several keys

# Number of ranks of a job


def processes(job: Job) -> int:
    """Return the ranks per node: by default one per accelerator, or one."""
    if job.resources.processes != "auto":
        return job.resources.processes
    return job.resources.accelerator.count if job.resources.accelerator else 1


# A mapping must have exactly one of these keys.
PROGRAMS = ("recipe", "script", "module", "notebook", "command")
ONE_OF: dict[type, tuple[str, ...]] = {Job: PROGRAMS, Mount: ("nfs", "pvc", "path")}

# The second key has no meaning together with the first.
NOT_BESIDE: dict[type, tuple[tuple[str, str, str], ...]] = {
    Job: (
        ("recipe", "args", "write the recipe's settings under config"),
        ("command", "args", "write all words in command"),
        ("command", "python", "name the interpreter in command"),
        *(
            ("recipe", key, "remove it: recipes do not need it")
            for key in ("resume", "keep", "keep_limit", "ends_when", "metrics", "model", "python")
        ),
    ),
    Image: (
        ("uri", "base", "remove one: `uri` is an existing image, `base` is the base of an image to build"),
        ("uri", "repository", "remove one: `uri` is an existing image, `repository` is for an image to build"),
        ("uri", "dockerfile", "remove one: `uri` is an existing image, `dockerfile` builds one"),
        ("base", "dockerfile", "remove `base`: your Dockerfile names its own base image"),
    ),
}

# The first key has a meaning only together with the second.
ONLY_BESIDE: dict[type, tuple[tuple[str, str, str], ...]] = {
    Image: (("context", "dockerfile", "add dockerfile: …, or remove context"),),
}

# How to compute: keys of the job that its `config` may have instead.
COMPUTE = ("precision", "compile", "accumulate", "clip", "channels_last")

SET_BY_HEADWAY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY|SECRET_?KEY|SECRET|PASSWORD|PASSWD|AUTH_?TOKEN|ACCESS_?TOKEN|HF_TOKEN)$",
    re.IGNORECASE,
)
_REFERENCED = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def conflicts(cls: type, given: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (what, key, fix) for missing or conflicting keys; an empty key means the whole mapping."""
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
    for key, other, fix in ONLY_BESIDE.get(cls, ()):
        if key in given and other not in given:
            yield f"{key} has no meaning without {other}", key, fix


def _join_names(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def job_problems(tree: Node) -> Iterator[Problem]:
    """Yield problems across keys. Checks the tree, so that problems in other keys do not hide these."""
    job = members(tree)
    env, secrets = _under(job, "env"), _under(job, "secrets")
    yield from _variables(env, "env")
    yield from _variables(secrets, "secrets")
    yield from _plaintext_secrets(env)
    yield from _unknown_placeholders(job)
    for name, node in secrets.items():
        kind = members(node).get("as")
        if "at" in members(node) and (kind is None or kind.value != "file"):
            where = members(node)["at"].key_or_value
            yield Problem(what=f"secrets.{name}.at is only for files", where=where, fix="add as: file")
    for name in secrets:
        if name in env:
            what = f"{name} is both in env and in secrets"
            yield Problem(what=what, where=secrets[name].key_or_value, fix="keep one of the two")
    for name in COMPUTE:
        if name in job and name in _under(job, "config"):
            where = job[name].key_or_value
            yield Problem(what=f"both {name} and config.{name} are given", where=where, fix=f"remove config.{name}")
    yield from _repeated(job.get("phases"), "name", "phases")
    yield from _repeated(job.get("mounts"), "at", "mounts")
    yield from _broken_patterns(job.get("explain"))


def _broken_patterns(rules: Node | None) -> Iterator[Problem]:
    for rule in rules.value if rules is not None and isinstance(rules.value, tuple) else ():
        pattern = members(rule).get("match")
        try:
            re.compile(str(pattern.value) if pattern is not None else "")
        except re.error as error:
            assert pattern is not None
            what = f"explain: {pattern.value!r} is not a regular expression: {error}"
            yield Problem(what=what, where=pattern.where, fix=r"escape special characters: \( \[ \. \* \?")


def _under(job: dict[str, Node], key: str) -> dict[str, Node]:
    return members(job[key]) if key in job else {}


def _variables(given: dict[str, Node], path: str) -> Iterator[Problem]:
    for name, node in given.items():
        if name in SET_BY_HEADWAY or name.startswith("HEADWAY_"):
            yield Problem(what=f"{path}: {name} is set by Headway", where=node.key_or_value, fix="remove it")


def _plaintext_secrets(env: dict[str, Node]) -> Iterator[Problem]:
    """Report values in `env` that look like secrets: everybody who can read the run folder can read them."""
    for name, node in env.items():
        held = [name] if node.literal else [name, *_REFERENCED.findall(node.text)]
        secret = next((each for each in held if _SECRET_NAME.search(each)), None)
        if secret:
            what = f"env.{name} looks like a secret, and everybody who can read the run folder could read it"
            yield Problem(what=what, where=node.where, fix=f"write it under secrets, as {name}: env:{secret}")


def _unknown_placeholders(job: dict[str, Node]) -> Iterator[Problem]:
    known = {*PLACEHOLDERS, *(f"{DATA}{name}" for name in _under(job, "data"))}
    resume = _under(job, "resume")
    values = [job.get("command"), job.get("args"), resume.get("args"), resume.get("if_exists")]
    for node in [*_texts(values), *_texts(_under(job, "env").values())]:
        for name in placeholder_names(node.text):
            if name not in known and not node.literal:
                near = closest_name(name, known)
                listed = ", ".join(f"{{{each}}}" for each in sorted(known))
                fix = f"did you mean {{{near}}}?" if near else f"there are {listed}"
                what = f"unknown placeholder {{{name}}}"
                yield Problem(what=what, where=node.where, fix=f"{fix}; for the text itself write {{{{{name}}}}}")


def _texts(nodes: Iterable[Node | None]) -> Iterator[Node]:
    """The texts in nodes, each alone or in a list."""
    for node in nodes:
        if node is not None:
            yield from node.value if isinstance(node.value, tuple) else [node]


def _repeated(entries: Node | None, key: str, path: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for entry in entries.value if entries and isinstance(entries.value, tuple) else ():
        node = members(entry).get(key)
        if node and node.text in seen:
            what = f"{path}: {key} {node.text} is given twice"
            yield Problem(what=what, where=node.where, fix=f"give each its own {key}")
        elif node:
            seen.add(node.text)


# Suggestions for mistyped names. Imports difflib only when needed.


LONGEST = 60  # longer names are not compared: the comparison is quadratic in the length


def closest_name(typed: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `typed`, or None if none is similar."""
    if len(typed) > LONGEST:
        return None
    from difflib import get_close_matches

    by_letters = {_letters(name): name for name in known}
    near = get_close_matches(_letters(typed), by_letters, n=1, cutoff=0.6)
    return by_letters[near[0]] if near else None


def _letters(name: str) -> str:
    """Normalise what users confuse most: case, dashes and underscores."""
    return name.lower().replace("-", "").replace("_", "")
