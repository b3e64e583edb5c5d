"""The server's API as an OpenAPI document, and as an HTML page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headway._version import __version__
from headway.artifacts.predictor import MEDIA_TYPE as PROBLEM
from headway.artifacts.predictor import Field, bad_request
from headway.core.html import render
from headway.model.types import described
from headway.model.values import schema
from headway.serving.inputs import HAS_LETTERS

if TYPE_CHECKING:
    from headway.serving.app import Settings


# KServe's V2 protocol (Open Inference Protocol): instances as columns of tensors instead of objects.


def instances_of(body: Any, fields: Sequence[Field]) -> dict[str, Any]:
    """Convert `{"inputs": [{"name", "shape", "datatype": "BYTES", "data"}]}` to `{"instances": […]}`.

    Its parameters are kept.
    """
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), list):
        raise bad_request('the body must be an object with a list "inputs"')
    if not isinstance(body.get("id"), str | None):
        raise bad_request("id must be a string", "/id")
    known = {field.name: field for field in fields}
    columns: dict[str, list[Any]] = {}
    for number, tensor in enumerate(body["inputs"]):
        at = f"/inputs/{number}"
        name = _checked(tensor, at, known)
        if name in columns:
            raise bad_request(f"the input {name!r} is given twice", at)
        columns[name] = _read_column(known[name], tensor["data"], at)
    lengths = {len(data) for data in columns.values()}
    if len(lengths) != 1:
        raise bad_request("all inputs must have the same number of elements", "/inputs")
    (count,) = lengths
    instances = [{name: data[row] for name, data in columns.items()} for row in range(count)]
    return {"instances": instances, "parameters": body.get("parameters", {})}


def _checked(tensor: Any, at: str, known: Mapping[str, Field]) -> str:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("data"), list):
        raise bad_request('an input must be an object with "name", "shape", "datatype" and a list "data"', at)
    if not isinstance(tensor.get("name"), str) or tensor["name"] not in known:
        raise bad_request(f"this model's inputs are {', '.join(sorted(known))}", f"{at}/name")
    wanted = _datatype(known[tensor["name"]])
    if tensor.get("datatype") != wanted:
        what = "images (as base64) and text must have the datatype BYTES" if wanted == "BYTES" else f"must be {wanted}"
        raise bad_request(what, f"{at}/datatype")
    count = len(tensor["data"])
    if tensor.get("shape") not in ([count], [count, 1]):
        raise bad_request(f"the shape does not match {count} elements", f"{at}/shape")
    return str(tensor["name"])


def describe_field(field: Field) -> dict[str, Any]:
    """Return an input as the try-out page needs it."""
    declared = {} if field.declared is None else described(field.name, field.declared)
    kind = field.kind if field.kind != "value" else declared.get("kind", "value")
    return {**declared, "name": field.name, "kind": kind, "summary": field.summary, "required": field.required}


def _datatype(field: Field) -> str:
    return "FP64" if field.declared is not None and field.declared.kind == "number" else "BYTES"


def _read_column(field: Field, data: list[Any], at: str) -> list[Any]:
    """Parse the elements that hold JSON: rows and nested lists."""
    if field.kind != "value" or _is_file(field) or _datatype(field) != "BYTES":
        return data
    try:
        return [json.loads(each) if isinstance(each, str) else each for each in data]
    except (ValueError, RecursionError):
        raise bad_request("the elements must be JSON", f"{at}/data") from None


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


def describe_kserve(name: str, fields: Sequence[Field], answers: Sequence[str]) -> dict[str, Any]:
    def tensor(each: str, datatype: str = "BYTES") -> dict[str, Any]:
        return {"name": each, "datatype": datatype, "shape": [-1]}

    return {
        "name": name,
        "versions": ["1"],
        "platform": "headway",
        "inputs": [tensor(field.name, _datatype(field)) for field in fields],
        "outputs": [tensor(each) for each in answers],
    }


def describe_openapi(settings: Settings, fields: Sequence[Field], *, streams: bool = False) -> dict[str, Any]:
    name = settings.name
    predict = _operation(
        "Predictions for a list of instances", _instances(settings, fields), "Predictions", form=_form(fields)
    )
    v1 = _operation("Predictions, in KServe's V1 protocol", _instances(settings, fields), "Predictions")
    v2 = _operation("Predictions, in KServe's V2 protocol", _tensors(settings, fields), "Tensors")
    paths: dict[str, Any] = {
        settings.predict_route: {"post": predict},
        f"/v1/models/{name}:predict": {"post": v1},
        f"/v2/models/{name}/infer": {"post": v2},
        "/v1/models": {"get": _plain("List of models")},
        f"/v1/models/{name}": {"get": _plain("Whether the model is ready")},
        "/v2": {"get": _plain("Server metadata")},
        f"/v2/models/{name}": {"get": _plain("The model's inputs and outputs")},
        "/v2/health/live": {"get": _health("Liveness")},
        "/v2/health/ready": {"get": _health("Readiness")},
        f"/v2/models/{name}/ready": {"get": _health("Readiness")},
        settings.health_route: {"get": _health("Readiness")},
        "/live": {"get": _health("Liveness")},
        "/ready": {"get": _health("Readiness")},
        "/about": {"get": _plain("The model, its inputs and how it was trained")},
        "/metrics": {"get": _plain("Prometheus metrics", "text/plain")},
    }
    if streams:
        paths |= _streams(settings, fields)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": name, "version": __version__, "description": f"{name}, served by Headway"},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _streams(settings: Settings, fields: Sequence[Field]) -> dict[str, Any]:
    one = _instances(settings, fields)
    one["properties"]["instances"] |= {"maxItems": 1}
    prompt = {"type": "string", "minLength": 1, "maxLength": settings.limits.text, "pattern": HAS_LETTERS}
    asked = {"type": "object", "required": ["prompt"], "properties": {"prompt": prompt, "stream": {"type": "boolean"}}}
    stream = _operation("The answer to one instance, piece by piece, as server-sent events", one, "Predictions")
    complete = _operation("A completion of a prompt, as in OpenAI's API", asked, "Predictions")
    stream["responses"]["200"] = {"description": "events", "content": {"text/event-stream": {}}}
    content = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    complete["responses"]["200"] = {"description": "the completion", "content": content}
    return {"/stream": {"post": stream}, "/v1/completions": {"post": complete}}


_SCHEMAS: dict[str, Any] = {
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "pointer": {"type": "string", "description": "JSON pointer to the error in the body (RFC 6901)"},
        },
    },
    "Predictions": {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": {"type": "array", "items": {"type": "object"}}},
    },
    "Tensors": {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "shape", "datatype", "data"],
                    "properties": {
                        "name": {"type": "string"},
                        "shape": {"type": "array", "items": {"type": "integer"}},
                        "datatype": {"enum": ["BYTES", "INT64", "FP64", "BOOL"]},
                        "data": {"type": "array"},
                    },
                },
            },
        },
    },
}
_REFUSALS = {
    "400": "invalid request",
    "401": "the token is missing or wrong",
    "403": "a page of another site may not send this",
    "408": "the body did not arrive in time",
    "413": "the request is too large",
    "421": "the Host header does not name this server",
    "429": "the queue is full; Retry-After says when to retry",
    "500": "the model failed",
    "503": "not ready, or too many large requests",
    "504": "timed out",
}


def _operation(summary: str, schema: dict[str, Any], answer: str, form: dict[str, Any] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if form is not None:
        content["multipart/form-data"] = {"schema": form}
    answers: dict[str, Any] = {"200": _answer("the answer", f"#/components/schemas/{answer}")}
    for status, description in _REFUSALS.items():
        answers[status] = _answer(description, "#/components/schemas/Problem", PROBLEM)
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": answers}


def _answer(description: str, ref: str, kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": {"$ref": ref}}}}


def _plain(summary: str, kind: str = "application/json") -> dict[str, Any]:
    answers = {
        "200": {"description": "the answer", "content": {kind: {}}},
        **{each: _answer(_REFUSALS[each], "#/components/schemas/Problem", PROBLEM) for each in ("401", "421")},
    }
    return {"summary": summary, "responses": answers}


def _health(summary: str) -> dict[str, Any]:
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    answers = {"200": {"description": "yes", **body}, "503": {"description": "temporarily unavailable", **body}}
    return {"summary": summary, "responses": answers, "security": []}


def _value(settings: Settings, field: Field) -> dict[str, Any]:
    if field.kind == "value" and field.declared is not None and field.declared.kind != "audio":
        return {**schema(field.declared), "description": field.summary}
    if field.kind != "text":
        plain = {"type": "string", "contentEncoding": "base64", "minLength": 1}
        wrapped = {"type": "object", "required": ["b64"], "properties": {"b64": plain}, "additionalProperties": False}
        return {"anyOf": [plain, wrapped], "description": f"{field.summary}, as base64"}
    limit = settings.limits.text
    pattern = {"minLength": 1, "maxLength": limit, "pattern": HAS_LETTERS}
    return {"type": "string", **pattern, "description": field.summary}


def _instance(settings: Settings, fields: Sequence[Field]) -> dict[str, Any]:
    required = [field for field in fields if field.required]
    named = {
        "type": "object",
        "required": [field.name for field in required],
        "properties": {field.name: _value(settings, field) for field in fields},
        "additionalProperties": False,
    }
    if len(required) != 1:
        return named
    (only,) = required
    value = _value(settings, only)
    short = value if only.kind == "value" and not _is_file(only) else {**value, "type": "string"}
    return {"anyOf": [named, short]}  # short form, if only one is required


def _instances(settings: Settings, fields: Sequence[Field]) -> dict[str, Any]:
    instance = _instance(settings, fields)
    limit = settings.limits.instances
    return {
        "type": "object",
        "required": ["instances"],
        "properties": {
            "instances": {"type": "array", "minItems": 1, "maxItems": limit, "items": instance},
            "parameters": _PARAMETERS,
        },
    }


_PARAMETERS: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {"explain": {"type": "boolean", "description": "add the explanation that the try-out page shows"}},
    "additionalProperties": False,
}


def _form(fields: Sequence[Field]) -> dict[str, Any]:
    parts: dict[str, Any] = {
        field.name: {"type": "string", "format": "binary"} if _is_file(field) else {"type": "string"}
        for field in fields
    }
    return {"type": "object", "required": [f.name for f in fields if f.required], "properties": parts}


def _is_file(field: Field) -> bool:
    return field.kind == "picture" or (field.declared is not None and field.declared.kind == "audio")


def _tensors(settings: Settings, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the schema of KServe's tensors. It cannot express that a shape fits its data or that inputs are unique."""
    required = sum(field.required for field in fields)
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"]},
            "inputs": {
                "type": "array",
                "minItems": max(1, required),
                "maxItems": len(fields),
                "items": {"anyOf": [_tensor(settings, field) for field in fields]},
            },
            "parameters": _PARAMETERS,
        },
    }


def _tensor(settings: Settings, field: Field) -> dict[str, Any]:
    limit = settings.limits.instances
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"enum": [field.name]},
            "shape": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer", "minimum": 1}},
            "datatype": {"enum": [_datatype(field)]},
            "data": {"type": "array", "minItems": 1, "maxItems": limit, "items": _element(settings, field)},
        },
    }


def _element(settings: Settings, field: Field) -> dict[str, Any]:
    value = _value(settings, field)
    if field.kind != "value" or _is_file(field) or _datatype(field) != "BYTES":
        return value
    return {"anyOf": [value, {"type": "string", "contentMediaType": "application/json", "contentSchema": value}]}


def page(document: dict[str, Any]) -> str:
    """Render the document as plain HTML: every route with its inputs."""
    return render("headway.serving", "openapi.html", **document, json=partial(json.dumps, indent=2))
