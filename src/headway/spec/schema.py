"""The published JSON Schema of the job file, for editors: `python -m headway.spec.schema` regenerates it.

Generated from the annotations and marks that the reader uses. A test checks that the file is up to date.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from headway.core.errors import MissingExtra
from headway.plugins import STORES, TRACKERS, Catalog, built_in_catalog
from headway.plugins.registry import CLASS_PATH
from headway.spec import constraints, rules, units
from headway.spec.constraints import (
    NOTHING,
    Key,
    described,
    is_collection,
    is_list,
    is_mapping,
    keys_of,
    union_members,
    unmarked,
)
from headway.spec.loading import to_plain
from headway.spec.model import NO_BUDGET, Accelerator, Cadence, Data, Job, Secret, TargetEntry

# The comments of a dataclass's fields, read from its source. Used only to generate files, never in a run.


def field_comments(cls: type[Any]) -> dict[str, str]:
    """Map each field to the comment on its line, or to the whole-line comments right above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    beside, alone = _comments(source)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field in body.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
            own = [beside[line] for line in lines if line in beside]
            found[field.target.id] = " ".join(own or _above(field.lineno, alone))
    return found


def summary(cls: type[Any]) -> str:
    """Return the first sentence of a class's docstring; empty for the one that `dataclass` generates."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text.replace("\n", " ")


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Map line to comment, separately for comments on a line of code and on a line of their own."""
    beside: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            place = beside if token.line[: token.start[1]].strip() else alone
            place[token.start[0]] = token.string.lstrip("#").strip()
    return beside, alone


def _above(line: int, alone: dict[int, str]) -> list[str]:
    lines: list[str] = []
    while line - 1 in alone:
        line -= 1
        lines.insert(0, alone[line])
    return lines


PATH = Path(__file__).with_name("headway.schema.json")

Schema = dict[str, Any]

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LIMITS = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}
_TEXT_FORMS: dict[Any, Schema] = {
    Accelerator: {"type": "string", "pattern": units.ACCELERATOR_PATTERN, "examples": ["T4:1", "A100:8"]},
    Cadence: {"type": "string", "pattern": units.CADENCE_PATTERN, "examples": ["10m", "500 steps", "5 epochs"]},
}


def job_schema(catalog: Catalog) -> Schema:
    """Return the schema of a job file with the recipes and targets of the catalog."""
    definitions: dict[str, Schema] = {}
    job = _object(Job, definitions)
    job["properties"]["recipe"] = _or_path(job["properties"]["recipe"], {"enum": [*sorted(catalog.recipes), None]})
    job["properties"]["targets"] = _targets(catalog, definitions)
    names = job["properties"]["log_to"]["items"]["anyOf"][0]
    names["enum"] = sorted({*names["enum"], *catalog.trackers})
    del definitions[TargetEntry.__name__]  # each kind of target has a definition of its own
    _named_data(job, definitions)
    job["properties"]["budget"] = _or_word(job["properties"]["budget"], NO_BUDGET)
    job["allOf"] += [_config_of(name, catalog, definitions) for name in sorted(catalog.recipes)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headway job file",
        **job,
        "$defs": dict(sorted(definitions.items())),
    }


def _or_word(schema: Schema, word: str) -> Schema:
    """Allow one word instead of the value."""
    description = {"description": schema["description"]} if "description" in schema else {}
    return {
        **description,
        "anyOf": [{key: each for key, each in schema.items() if key != "description"}, {"const": word}],
    }


def _named_data(job: Schema, definitions: dict[str, Schema]) -> None:
    """Allow a project any names under `data`, each with one path or URL; a recipe has its lists only."""
    data = definitions[Data.__name__]
    lists = dict(data["properties"])
    one = _simple(str, ("source",))
    data["properties"] = {
        name: {"description": schema.pop("description"), "anyOf": [schema, one]} for name, schema in lists.items()
    }
    data["additionalProperties"] = one
    data["propertyNames"] = {"pattern": constraints.FORMS["file name"].pattern}
    only_lists = {"properties": {name: {"type": ["array", "null"]} for name in lists}, "additionalProperties": False}
    job["allOf"].append({"if": _given("recipe"), "then": {"properties": {"data": only_lists}}})


def _or_path(schema: Schema, named: Schema) -> Schema:
    """Return the schema of a plug-in's name, or of a class as MODULE:CLASS."""
    described: Schema = {name: schema[name] for name in ("description", "default") if name in schema}
    return {**described, "anyOf": [named, {"type": "string", "pattern": f"^{CLASS_PATH.pattern}$"}]}


def _config_of(recipe: str, catalog: Catalog, definitions: dict[str, Schema]) -> Schema:
    name = f"{recipe}-config"
    definitions[name] = _object(catalog.recipes[recipe](), definitions)
    chosen = {"properties": {"recipe": {"const": recipe}}, "required": ["recipe"]}
    return {"if": chosen, "then": {"properties": {"config": _or_nothing({"$ref": _reference(name)})}}}


def _targets(catalog: Catalog, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a target: the keys of its kind and no others."""
    entries: list[Schema] = []
    for kind in sorted(catalog.targets):
        name = f"{kind}-target"
        definitions[name] = _target(kind, catalog, definitions)
        entries.append({"$ref": _reference(name)})
    by_path: Schema = {"kind": {"type": "string", "pattern": f"^{CLASS_PATH.pattern}$"}}
    any_options: Schema = {"type": "object", "properties": by_path, "required": ["kind"]}
    entries.append(any_options)
    key = keys_of(Job)["targets"]
    names = {"pattern": constraints.FORMS["target name"].pattern}
    places = {"type": "object", "propertyNames": names, "additionalProperties": {"anyOf": entries}}
    return {"description": field_comments(Job)[key.field.name], **_or_nothing(places)}


def _target(kind: str, catalog: Catalog, definitions: dict[str, Schema]) -> Schema:
    described = {"const": kind, "description": field_comments(TargetEntry)["kind"]}
    try:
        options = _object(catalog.targets[kind](), definitions)
    except MissingExtra:  # the extra is not installed: accept any options
        options = {"type": "object", "properties": {}}
    options["properties"] = {"kind": described, **options["properties"]}
    options["required"] = ["kind", *options.get("required", [])]
    return options


def _object(cls: Any, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a mapping with the keys of a dataclass."""
    comments = field_comments(cls)
    keys = keys_of(cls).values()
    schema = {
        "description": summary(cls),
        "type": "object",
        "properties": {key.name: _property(key, comments.get(key.field.name, ""), definitions) for key in keys},
        "required": [key.name for key in keys if key.required],
        "additionalProperties": False,
        **_exclusions(cls),
    }
    return {name: part for name, part in schema.items() if part not in ("", [])}


def _exclusions(cls: Any) -> Schema:
    """Return the schema of keys of which exactly one is required, and of keys that exclude or need each other."""
    one_of = [_given(name) for name in rules.ONE_OF.get(cls, ())]
    never: list[Schema] = [
        {"not": {"allOf": [_given(one), _given(other)]}} for one, other, _ in rules.NOT_BESIDE.get(cls, ())
    ]
    never += [{"anyOf": [{"not": _given(one)}, _given(other)]} for one, other, _ in rules.ONLY_BESIDE.get(cls, ())]
    return {**({"oneOf": one_of} if one_of else {}), **({"allOf": never} if never else {})}


def _given(name: str) -> Schema:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _property(key: Key, comment: str, definitions: dict[str, Schema]) -> Schema:
    schema = schema_of(key.type, definitions)
    if is_collection(key.type) and not key.required:
        schema = _or_nothing(schema)
    default = typed_default(key)
    if default is not None:
        schema = {**schema, "default": default}
    return {"description": comment, **schema} if comment else schema


def typed_default(key: Key) -> Any:
    """Return a key's default as users would type it; None if there is nothing to show."""
    if key.required or is_collection(key.type):
        return None
    value = key.default()
    forms = [form for member in union_members(key.type) for form in constraints.forms(unmarked(member)[1])]
    if value is not None and "duration" in forms:
        return units.format_duration(value)
    return units.format_size(value) if value is not None and "size" in forms else to_plain(value)


def _or_nothing(schema: Schema) -> Schema:
    """Also allow the key with no value."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def schema_of(annotation: Any, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of the values that an annotation allows."""
    kind, extra = unmarked(annotation)
    members = union_members(kind)
    if len(members) > 1:
        return _union(members, definitions)
    if kind is Any:
        return {}
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if is_list(kind):
        items = _list(kind, definitions)
        return {"anyOf": [items, {"type": ["string", "number"]}]} if constraints.WORDS in extra else items
    if is_mapping(kind):
        return _mapping(kind, definitions)
    if is_dataclass(kind):
        return _nested_schema(kind, definitions)
    return _simple(kind, extra)


def _union(members: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    choices = [schema_of(member, definitions) for member in members if member is not NOTHING]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    if NOTHING not in members:
        return schema
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return _or_nothing(schema)


def _list(kind: Any, definitions: dict[str, Schema]) -> Schema:
    inside = get_args(kind)
    if get_origin(kind) is list or inside[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(inside[0], definitions)}
    parts = [schema_of(part, definitions) for part in inside]
    return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}


def _mapping(kind: Any, definitions: dict[str, Schema]) -> Schema:
    names, values = get_args(kind)
    schema: Schema = {"type": "object", "additionalProperties": schema_of(values, definitions)}
    forms = constraints.forms(unmarked(names)[1])
    return {**schema, "propertyNames": {"pattern": constraints.FORMS[forms[0]].pattern}} if forms else schema


def _nested_schema(cls: Any, definitions: dict[str, Schema]) -> Schema:
    if cls in _TEXT_FORMS:
        return dict(_TEXT_FORMS[cls])
    ours = cls.__module__ == Job.__module__
    name = cls.__name__ if ours else f"{cls.__module__.removeprefix('headway.')}.{cls.__name__}"
    if name not in definitions:
        definitions[name] = _object(cls, definitions)
    nested = {"$ref": _reference(name)}
    return {"anyOf": [_simple(str, ("secret",)), nested]} if cls is Secret else nested


def _simple(kind: Any, extra: tuple[object, ...]) -> Schema:
    forms = constraints.forms(extra)
    if constraints.TRACKER in extra:
        return _or_path({}, {"enum": sorted(TRACKERS.built_in)})
    if kind is str or {"duration", "size"} & set(forms):
        shape: Schema = {"type": ["string", "number", "boolean"] if constraints.AS_TYPED in extra else "string"}
        return {**shape, **({"pattern": constraints.FORMS[forms[0]].pattern} if forms else {})}
    limits = {_LIMITS[bound.sign]: bound.limit for bound in constraints.bounds(extra)}
    whole = {name: int(limit) if limit.is_integer() else limit for name, limit in limits.items()}
    return {"type": _SIMPLE[kind], **whole}


def _reference(name: str) -> str:
    return f"#/$defs/{name}"


def text(catalog: Catalog | None = None) -> str:
    catalog = catalog or built_in_catalog()
    written = json.dumps(job_schema(catalog), indent=2, ensure_ascii=False) + "\n"
    added = "".join(f"{scheme}:|" for scheme in catalog.schemes if scheme not in STORES.built_in)
    return written.replace(constraints.SCHEMES, f"{added}{constraints.SCHEMES}")


# The tables of docs/job-file.md, from the same annotations: `python -m headway.spec.schema docs/job-file.md`.


BEGIN, END = "<!-- keys: begin (generated) -->", "<!-- keys: end -->"


def tables(catalog: Catalog) -> str:
    """Return one table for the job, one per mapping inside it, and one per recipe and kind of target."""
    inside: dict[Any, list[str]] = {}
    for path, cls in _nested_table(Job, ""):
        inside.setdefault(cls, []).append(f"`{path}`")
    sections: list[tuple[str, Any]] = [("The job", Job)]
    sections += [(", ".join(paths), cls) for cls, paths in inside.items()]
    sections += [(f"`config` of `recipe: {name}`", catalog.recipes[name]()) for name in sorted(catalog.recipes)]
    sections += [(f"`targets.NAME` of `kind: {kind}`", catalog.targets[kind]()) for kind in sorted(catalog.targets)]
    return "\n".join(_section(title, cls) for title, cls in sections)


def _nested_table(cls: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, dataclass) of every nested mapping, with paths as for `--set`."""
    for key in keys_of(cls).values():
        for member in union_members(key.type):
            step = ".N" if is_list(member) else ".NAME" if is_mapping(member) else ""
            here = f"{path}{key.name}{step}"
            inside = next((part for part in (member, *get_args(member)) if is_dataclass(part)), None)
            if inside and inside not in (Accelerator, Cadence, TargetEntry):
                yield here, inside
                yield from _nested_table(inside, f"{here}.")


def _section(title: str, cls: Any) -> str:
    comments = field_comments(cls)
    rows = [_row(key, comments.get(key.field.name, "")) for key in keys_of(cls).values()]
    words = [summary(cls), ""] if summary(cls) else []
    head = [f"### {title}", "", *words, "| key | meaning | written as | default |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *(rows or ["| | no keys | | |"]), ""])


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
    """Return the document with its generated part regenerated."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(catalog or built_in_catalog())}\n{END}{after}"


if __name__ == "__main__":
    PATH.write_text(text())
    sys.stdout.write(f"wrote {PATH}\n")
    for page in map(Path, sys.argv[1:]):
        page.write_text(renewed(page.read_text()))
        sys.stdout.write(f"wrote {page}\n")
