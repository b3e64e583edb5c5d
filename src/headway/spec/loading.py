"""Load a job file: parse and validate it to a Job, or raise BadJob with all its problems."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.core.errors import BadJob, BadPlan, MissingExtra, Problem
from headway.core.metric_sources import metric_source_problem
from headway.plugins import RECIPES, TARGETS, Catalog, Loader, installed_catalog
from headway.plugins.registry import BrokenPlugin, Registry, is_path
from headway.spec.constraints import recorded_keys_of
from headway.spec.model import NO_BUDGET, Budget, Data, DataSource, FileName, Job, Source, TargetEntry, TargetName
from headway.spec.renamed import translate_former
from headway.spec.rules import Node, closest_name, job_problems, members, tree_of
from headway.spec.validate import BAD, Reader, ValidationContext

# Convert a job to plain JSON and back, for plan.json: durations and sizes are numbers, `as_` is written as `as`.


T = TypeVar("T")


def dump(job: Job) -> dict[str, Any]:
    """Convert a job to plain JSON, with all defaults but without the file's path. Equal jobs give equal dumps."""
    plain = to_plain(job)
    assert isinstance(plain, dict)
    return plain


def undump(plain: Mapping[str, Any], *, where: str = "job") -> Job:
    """Rebuild the job from the output of `dump`. Expands no variables and checks no files: `load` has done both."""
    return from_plain(plain, Job, where=where)


def to_plain(value: Any) -> Any:
    """Convert any dataclass of a job file to plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = [(key, getattr(value, key.field.name)) for key in recorded_keys_of(type(value)).values()]
        return {
            key.name: to_plain(member) for key, member in kept if not key.omitted_by_default or member != key.default()
        }
    if isinstance(value, Mapping):
        return {str(name): to_plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(plain: Mapping[str, Any], cls: type[T], *, where: str = "plan") -> T:
    """Rebuild a `cls`, such as a recipe's config or a target's options, from the output of `to_plain`.

    Accepts the output of former versions too. Raises BadPlan for anything else.
    """
    problems: list[Problem] = []
    try:
        value = Reader(ValidationContext(problems, typed=False)).dataclass(
            tree_of(translate_former(cls, plain), where), cls
        )
    except RecursionError:
        raise BadPlan("nested too deep", where=where, fix="headway plan --out plan.json") from None
    if value is BAD or problems:
        raise BadPlan("; ".join(f"{each.where}: {each.what}" for each in problems), fix="headway plan --out plan.json")
    return value  # type: ignore[no-any-return]


MOST_PROBLEMS = 100  # the most shown at once; a file with more is probably not a job file
LOCAL = "local"


def load(
    path: str | Path,
    *,
    set: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
) -> Job:
    """Load a job file, with `key=value` overrides. Relative paths in it are relative to its folder.

    `variables` are added to the job's `env`, their values unexpanded. `${env:NAME}` is looked up in `env`.
    """
    text = _text(Path(path))
    return loads(text, where=str(path), root=Path(path).parent, set=set, variables=variables, env=env, catalog=catalog)


def loads(
    text: str,
    *,
    where: str = "job",
    root: str | Path = ".",
    set: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
) -> Job:
    """Load a job from a text. Problems are reported at `where`:line:column."""
    problems: list[Problem] = []
    tree = _tree(text, where, problems)
    job = None
    if tree is not None:
        from headway.spec.yaml_reader import override, put_variables

        tree = put_variables(override(tree, set, problems), variables or {}, problems)
        reading = ValidationContext(problems, os.environ if env is None else env, Path(root))
        job = _JobReader(reading, catalog or installed_catalog()).read(tree)
    if problems:
        raise BadJob(_in_order(problems))
    assert isinstance(job, Job), "a job that could not be read has problems"
    return replace(job, root=str(root))


def _text(path: Path) -> str:
    """Read the file's text. Raises BadJob if it is missing, unreadable, too large or not UTF-8."""
    from headway.spec.yaml_reader import MAX_BYTES

    try:
        if path.is_dir():
            raise _bad("this is a folder, not a job file", str(path), f"name the file: -f {path / 'headway.yaml'}")
        if path.exists() and not path.is_file():
            raise _bad("this is not a regular file", str(path), "name a file")
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _bad("there is no such file", str(path), "headway init") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _bad(f"cannot be read: {reason}", str(path), f"ls -l {path}") from None
    if len(body) > MAX_BYTES:
        what = f"a job file has at most {MAX_BYTES:,} bytes"
        raise _bad(what, str(path), "move the data to files of their own, and name them in `data`")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = body[: error.start]
        place = f"{before.count(10) + 1}:{len(before) - before.rfind(10)}"
        raise _bad("not UTF-8 text", f"{path}:{place}", "save the file as UTF-8") from None


def _bad(what: str, where: str, fix: str) -> BadJob:
    return BadJob([Problem(what=what, where=where, fix=fix)])


def _tree(text: str, where: str, problems: list[Problem]) -> Node | None:
    from headway.spec.yaml_reader import MAX_BYTES, parse  # PyYAML is imported only to read a file

    if len(text.encode(errors="replace")) > MAX_BYTES:
        problems.append(Problem(what=f"a job file has at most {MAX_BYTES:,} bytes", where=where))
        return None
    tree = parse(text, where, problems)
    if problems and tree is None:
        return None
    if tree is None or tree.value is None:
        problems.append(Problem(what="the file is empty", where=f"{where}:1:1", fix="start with name: my-job"))
        return None
    if not isinstance(tree.value, dict):
        fix = "start with name: my-job"
        problems.append(Problem(what="a job file is a mapping of keys and values", where=tree.where, fix=fix))
        return None
    return tree


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without duplicates, in the file's order, at most MOST_PROBLEMS of them."""
    once: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        once.setdefault((problem.where, problem.fix), problem)  # report a problem once if a YAML alias repeats it
    ordered = sorted(once.values(), key=_position)
    if len(ordered) <= MOST_PROBLEMS:
        return ordered
    rest = len(ordered) - MOST_PROBLEMS
    return [*ordered[:MOST_PROBLEMS], Problem(what=f"and {rest} more problems", fix="fix these first")]


def _position(problem: Problem) -> tuple[int, int]:
    place = re.search(r":(\d+):(\d+)$", problem.where)
    return (int(place[1]), int(place[2])) if place and not problem.where.startswith("--") else (10**9, 0)


class _JobReader:
    """Build a job from a tree. A recipe defines what `config` may contain, and each kind of target its options."""

    def __init__(self, context: ValidationContext, catalog: Catalog) -> None:
        self.context = context
        self.catalog = catalog
        self.reader = Reader(context)
        self._named_data: Mapping[str, str] = {}

    def read(self, tree: Node) -> Any:
        recipe = members(tree).get("recipe")
        own = {
            "recipe": self._recipe,
            "config": lambda node, path: self._config(node, path, recipe),
            "targets": self._targets,
            "data": lambda node, path: self._data(node, path, recipe),
            "metrics": self._metrics,
            "budget": self._budget,
        }
        self.context.problems.extend(job_problems(tree))
        job = self.reader.dataclass(tree, Job, own=own)
        if job is BAD:
            return BAD
        data = self._own_data(job.recipe) if job.data == Data() else job.data
        return replace(job, data=data, named_data=self._named_data)

    def _data(self, node: Node | None, path: str, recipe: Node | None) -> Any:
        """The lists of sources; for a project also any other name, with a single path or URL."""
        given = members(node) if node is not None else {}
        if node is None or recipe is not None or not given:
            return Data() if node is None or node.value is None else self.reader.value(node, Data, path)
        lists = {name: each for name, each in given.items() if isinstance(each.value, tuple)}
        named = {name: each for name, each in given.items() if name not in lists}
        data = self.reader.value(replace(node, value=lists), Data, path)
        paths = self.reader.value(replace(node, value=named), Mapping[FileName, DataSource], path)
        self._named_data = {} if paths is BAD else paths
        return BAD if paths is BAD else data

    def _budget(self, node: Node | None, path: str) -> Any:
        """Limits by key, or the word `none` for a run without any."""
        if node is not None and node.value == NO_BUDGET:
            return Budget(unlimited=True)
        return Budget() if node is None or node.value is None else self.reader.value(node, Budget, path)

    def _metrics(self, node: Node | None, path: str) -> Any:
        """The sources of a project's metrics. None is the default: all usual ones."""
        if node is None or node.value is None:
            return None
        entries = self.reader.value(node, tuple[str, ...], path)
        if entries is BAD or not isinstance(node.value, tuple):
            return BAD
        wrong = [self._wrong_metric(entry, each, path) for each, entry in zip(entries, node.value, strict=True)]
        return BAD if any(wrong) else entries

    def _wrong_metric(self, node: Node, entry: str, path: str) -> bool:
        found = metric_source_problem(entry)
        if found is not None:
            self.context.report(f"{path}: {found[0]}", node.where, found[1])
        return found is not None

    def _own_data(self, recipe: str | None) -> Data:
        """Return the recipe's built-in data, for a job that names no data."""
        source = self.catalog.data.get(recipe or "")
        if not source:
            return Data()
        brought = (Source(source=source),)
        return Data(train=brought, val=brought, test=brought)

    def _recipe(self, node: Node | None, path: str) -> Any:
        name = self.reader.value(node, str | None, path) if node is not None else None
        if name is None or name is BAD:
            return name
        assert node is not None
        return self._named(node, name, self.catalog.recipes, RECIPES)

    def _named(self, node: Node, name: str, known: Mapping[str, Loader], registry: Registry[Any]) -> Any:
        """Check the name of a plug-in, or the path of its class, and that it can be loaded."""
        if is_path(name):
            self.reader.declared(name, node)
        try:
            if name in known:
                known[name]
                return name
        except BrokenPlugin as error:
            return self.context.report(error.problem.what, node.where, error.problem.fix)
        near = closest_name(name, known)
        fix = registry.hints.get(name) or (f"did you mean {near}?" if near else f"write one of {', '.join(known)}")
        return self.context.report(f"unknown {registry.what} '{name[:60]}'", node.where, fix)

    def _config(self, node: Node | None, path: str, recipe: Node | None) -> Any:
        """Read the config: a recipe's with its defaults, a script's unchanged."""
        described_by = self._recipe_config(recipe)
        if recipe is None or described_by is None:
            return {} if node is None else self.reader.value(node, Mapping[str, Any], path)
        found = self.reader.dataclass(node or Node({}, recipe.where), described_by(), path)
        return BAD if found is BAD else to_plain(found)

    def _recipe_config(self, recipe: Node | None) -> Loader | None:
        if recipe is None or not isinstance(recipe.value, str):
            return None
        try:
            return self.catalog.recipes.get(recipe.value)
        except BrokenPlugin:  # reported for the recipe itself
            return None

    def _targets(self, node: Node | None, path: str) -> Any:
        """Read the targets. `local` is always one of them."""
        if node is not None and not isinstance(node.value, dict):
            return self.reader.value(node, Mapping[str, TargetEntry], path)  # reports that it is no mapping
        given = members(node) if node is not None else {}
        nobody = Node({"kind": Node(LOCAL, "")}, "")
        entries = {name: self._target(name, entry, path) for name, entry in {LOCAL: nobody, **given}.items()}
        return BAD if any(entry is BAD for entry in entries.values()) else entries

    def _target(self, name: str, node: Node, path: str) -> Any:
        here = f"{path}.{name}"
        fits = self.reader.key_fits(name, node, TargetName, path)
        if not isinstance(node.value, dict):
            return self.reader.value(node, TargetEntry, here)
        kind = node.value.get("kind")
        if kind is None:
            known = ", ".join(sorted(self.catalog.targets))
            return self.context.report(f"{here}.kind is missing", node.where, f"add kind: one of {known}")
        word = self.reader.value(kind, str, f"{here}.kind")
        if word is BAD:
            return BAD
        if self._named(kind, word, self.catalog.targets, TARGETS) is BAD:
            return BAD
        if name == LOCAL and word != LOCAL:
            return self.context.report(f"{here} is always this machine", kind.where, "give this target another name")
        options = self._options(node, word, here)
        return TargetEntry(kind=word, options=options) if fits and options is not BAD else BAD

    def _options(self, node: Node, kind: str, path: str) -> Any:
        rest = replace(node, value={name: member for name, member in members(node).items() if name != "kind"})
        try:
            described_by = self.catalog.targets[kind]()
        except MissingExtra:  # other machines may have the extra; using the target on this one reports it
            return self.reader.value(rest, Mapping[str, Any], path)
        found = self.reader.dataclass(rest, described_by, path)
        return BAD if found is BAD else to_plain(found)
