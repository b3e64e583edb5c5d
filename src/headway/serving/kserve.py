"""KServe's V2 protocol (Open Inference Protocol): instances as columns of tensors instead of objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.artifacts.predictor import Field, bad_request


def instances_of(body: Any, fields: Sequence[Field]) -> dict[str, Any]:
    """Convert `{"inputs": [{"name", "shape", "datatype": "BYTES", "data"}]}` to `{"instances": […]}`.

    Its parameters are kept.
    """
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), list):
        raise bad_request('the body must be an object with a list "inputs"')
    if not isinstance(body.get("id"), str | None):
        raise bad_request("id must be a string", "/id")
    known = {field.name for field in fields}
    columns: dict[str, list[Any]] = {}
    for number, tensor in enumerate(body["inputs"]):
        at = f"/inputs/{number}"
        name = _checked(tensor, at, known)
        if name in columns:
            raise bad_request(f"the input {name!r} is given twice", at)
        columns[name] = tensor["data"]
    lengths = {len(data) for data in columns.values()}
    if len(lengths) != 1:
        raise bad_request("all inputs must have the same number of elements", "/inputs")
    (count,) = lengths
    instances = [{name: data[row] for name, data in columns.items()} for row in range(count)]
    return {"instances": instances, "parameters": body.get("parameters", {})}


def _checked(tensor: Any, at: str, known: set[str]) -> str:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("data"), list):
        raise bad_request('an input must be an object with "name", "shape", "datatype" and a list "data"', at)
    if not isinstance(tensor.get("name"), str) or tensor["name"] not in known:
        raise bad_request(f"this model's inputs are {', '.join(sorted(known))}", f"{at}/name")
    if tensor.get("datatype") != "BYTES":
        raise bad_request("images (as base64) and text must have the datatype BYTES", f"{at}/datatype")
    count = len(tensor["data"])
    if tensor.get("shape") not in ([count], [count, 1]):
        raise bad_request(f"the shape does not match {count} elements", f"{at}/shape")
    return str(tensor["name"])


def answer(name: str, predictions: Sequence[Mapping[str, Any]], id_: Any) -> dict[str, Any]:
    """Convert predictions to columns: text and numbers as they are, other values as JSON text."""
    keys = list(dict.fromkeys(key for each in predictions for key in each))
    outputs = [_column(key, [each.get(key) for each in predictions]) for key in keys]
    return {"model_name": name, "model_version": "1", "outputs": outputs, **({"id": id_} if id_ is not None else {})}


def _column(name: str, values: list[Any]) -> dict[str, Any]:
    if all(isinstance(value, bool) for value in values):
        kind = "BOOL"
    elif all(isinstance(value, int) for value in values):
        kind = "INT64"
    elif all(isinstance(value, (int, float)) for value in values):
        kind = "FP64"
    else:
        kind = "BYTES"
        values = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return {"name": name, "shape": [len(values)], "datatype": kind, "data": values}


def described(name: str, fields: Sequence[Field], answers: Sequence[str]) -> dict[str, Any]:
    def tensor(each: str) -> dict[str, Any]:
        return {"name": each, "datatype": "BYTES", "shape": [-1]}

    return {
        "name": name,
        "versions": ["1"],
        "platform": "headway",
        "inputs": [tensor(field.name) for field in fields],
        "outputs": [tensor(each) for each in answers],
    }
