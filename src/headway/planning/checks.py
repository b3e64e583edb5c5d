"""Static checks of a valid job: placeholders, arguments of its script, image architecture. Runs nothing, offline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.spec.rules import closest

if TYPE_CHECKING:
    import ast

    from headway.spec import Job

# Placeholders as in examples, to be replaced by the user's own names.
_PLACEHOLDER = re.compile(
    r"<[\w .-]+>|\b(?:YOUR|MY)[-_](?:PROJECT|BUCKET|REPO|REGISTRY|NAME|KEY|TOKEN)\b|(?i:change[-_ ]?me|replace[-_ ]?me)"
    r"|\byour-(?:project|bucket|repo|registry|name|key|token)\b|path/to/|\bTODO\b|\bFIXME\b"
)
_ARM = ("t2a-", "c4a-", "n4a-", "a4x-", "m7g.", "c7g.", "g5g.")


def problems(job: Job, options: Mapping[str, Any]) -> list[Problem]:
    return [*placeholders(job, options), *arguments(job), *architecture(job, options)]


def placeholders(job: Job, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Find placeholders that were not filled in."""
    for path, value in _texts(job, options):
        found = _PLACEHOLDER.search(value)
        if found:
            yield Problem(
                what=f"{found[0]!r} in {value!r} is a placeholder", where=path, fix="replace it with your own value"
            )


def _texts(job: Job, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "outputs", job.outputs
    for name in ("train", "val", "test"):
        yield from ((f"data.{name}", source.source) for source in getattr(job.data, name))
    yield from ((f"env.{key}", value) for key, value in job.env.items())
    yield from (("args", value) for value in job.args)
    yield from ((f"secrets.{key}", secret.ref) for key, secret in job.secrets.items())
    named = {"export.to": job.export.to, "image.uri": job.image.uri, "image.repository": job.image.repository}
    yield from ((key, value) for key, value in named.items() if value)
    yield from ((f"targets.{key}", value) for key, value in options.items() if isinstance(value, str))


def architecture(job: Job, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Find an image for one processor architecture on a machine of another."""
    machine, platform = job.resources.machine or "", str(options.get("platform") or "linux/amd64")
    if not platform.startswith("linux/"):
        return
    arm = machine.startswith(_ARM)
    if machine and arm != platform.startswith("linux/arm64"):
        wanted = "linux/arm64" if arm else "linux/amd64"
        what = f"{machine} needs an image for {wanted}, but the target builds for {platform}"
        yield Problem(what=what, where="resources.machine", fix=f"platform: {wanted} in the target, or another machine")


# Arguments: the script's argparse parser, read from its source


def arguments(job: Job) -> Iterator[Problem]:
    """Find arguments that the script's argparse would reject. Reports nothing where the source is not conclusive."""
    if not job.script or not job.script.endswith(".py"):
        return
    try:
        source = (Path(job.root) / job.script).read_text()
    except (OSError, UnicodeDecodeError):
        return
    if "add_argument" not in source:
        return
    takes = _options(source)
    if takes is not None:
        yield from _compared(job, takes)


class _Takes:
    """The options that a parser declares, as far as its source states them literally."""

    def __init__(self) -> None:
        self.flags: dict[str, bool] = {}  # option -> whether it takes a value
        self.required: dict[str, tuple[str, ...]] = {}  # first name -> all its names
        self.choices: dict[str, tuple[str, ...]] = {}
        self.numbers: dict[str, type] = {}
        self.positional = False


def _options(source: str) -> _Takes | None:
    """Parse the declared options; None if the parser is built in ways that static reading cannot follow."""
    import ast

    if re.search(r"parse_known_args|add_subparsers|parents\s*=|fromfile_prefix_chars|HfArgumentParser", source):
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    if sum(_called(node) == "ArgumentParser" for node in ast.walk(tree)) != 1:
        return None
    takes = _Takes()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "add_argument" and not _add(takes, node):
            return None
    return takes


def _called(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _add(takes: _Takes, call: ast.Call) -> bool:
    """Read one `add_argument` call; return False if a name is not a string literal."""
    import ast

    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if len(names) != len(call.args) or not names or any(keyword.arg is None for keyword in call.keywords):
        return False
    if not names[0].startswith("-"):
        takes.positional = True
        return True
    keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
    action = getattr(keywords.get("action"), "value", None)
    if "action" in keywords and not isinstance(action, str):  # BooleanOptionalAction, or a custom one
        names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        action = "store_true"
    takes.flags |= dict.fromkeys(names, action not in ("store_true", "store_false", "count", "store_const", "help"))
    if getattr(keywords.get("required"), "value", False) is True:
        takes.required[names[0]] = tuple(names)
    offered = keywords.get("choices")
    if isinstance(offered, ast.List | ast.Tuple) and all(isinstance(e, ast.Constant) for e in offered.elts):
        takes.choices |= dict.fromkeys(names, tuple(str(e.value) for e in offered.elts if isinstance(e, ast.Constant)))
    kind = {"int": int, "float": float}.get(str(getattr(keywords.get("type"), "id", "")))
    if kind is not None and "nargs" not in keywords:
        takes.numbers |= dict.fromkeys(names, kind)
    return True


def _compared(job: Job, takes: _Takes) -> Iterator[Problem]:
    given: set[str] = set()
    words = list(job.args)
    for place, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, _, value = word.partition("=")
        if not word.startswith("--") and word not in takes.flags:  # -b64: a short option with its value
            name, value = word[:2], word[2:]
        full = _resolved(name, takes)
        if full is None:
            near = closest(name, takes.flags)
            fix = f"did you mean {near}?" if near else f"its arguments: {', '.join(sorted(takes.flags)) or 'none'}"
            yield Problem(what=f"{job.script} takes no argument {name}", where="args", fix=fix)
            continue
        given.add(full)
        follows = value or (words[place + 1] if place + 1 < len(words) else "")
        yield from _value(job, full, follows, takes)
    for first, names in takes.required.items():
        if not given & set(names):
            yield Problem(what=f"{job.script} needs the argument {first}", where="args", fix=f"add {first} … to args")


def _resolved(name: str, takes: _Takes) -> str | None:
    """Resolve an option name: argparse accepts any unambiguous prefix."""
    if name in takes.flags or name in ("-h", "--help"):
        return name
    fitting = [flag for flag in takes.flags if flag.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _value(job: Job, name: str, value: str, takes: _Takes) -> Iterator[Problem]:
    if not takes.flags.get(name):
        return
    if not value or (value.startswith("--") and len(value) > 2):
        yield Problem(what=f"{name} of {job.script} needs a value", where="args", fix=f"write {name} VALUE")
    elif name in takes.choices and value not in takes.choices[name]:
        choices = ", ".join(takes.choices[name])
        yield Problem(what=f"{name} of {job.script} cannot be {value}", where="args", fix=f"choose one of {choices}")
    elif name in takes.numbers:
        try:
            takes.numbers[name](value)
        except ValueError:
            kind = "a whole number" if takes.numbers[name] is int else "a number"
            yield Problem(
                what=f"{name} of {job.script} must be {kind}, not {value}", where="args", fix=f"fix {name} in args"
            )
