"""Google's own message types, as its client library ships them. What they do not know is refused, as the API does.

The library's packages import all clients of all services when they are opened, which takes eleven seconds of CPU: the
modules of types are imported by themselves.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest


def _types(name: str) -> Any:
    library = pytest.importorskip("google.cloud", reason="google-cloud-aiplatform is not installed")
    homes = [Path(place) / "aiplatform_v1" for place in library.__path__]
    home = next((place for place in homes if place.is_dir()), None)
    if home is None:
        pytest.skip("google-cloud-aiplatform is not installed")
    for package, folder in (("google.cloud.aiplatform_v1", home), ("google.cloud.aiplatform_v1.types", home / "types")):
        if package not in sys.modules:
            module = types.ModuleType(package)
            module.__path__ = [str(folder)]
            sys.modules[package] = module
    return importlib.import_module(f"google.cloud.aiplatform_v1.types.{name}")


def require() -> None:
    """Skips the test, by name, where the library is not installed."""
    _types("custom_job")


def custom_job(body: Any) -> Any:
    """A CustomJob of Google's, from JSON. ParseError for an unknown field, a wrong type or an unknown enum value."""
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    kind = _types("custom_job").CustomJob
    return json_format.ParseDict(body, kind.pb(kind()))


def read(module: str, kind: str, body: Any) -> Any:
    """Any other of Google's messages, from JSON and back to it. Unreadable where its type does not allow it."""
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    wanted = getattr(_types(module), kind)
    try:
        return plain(json_format.ParseDict(body, wanted.pb(wanted())))
    except json_format.ParseError as error:
        raise Unreadable(str(error)) from error


def plain(message: Any) -> Any:
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    return json_format.MessageToDict(message)


class Unreadable(Exception):
    """Not what Google's types say."""


def parsed(body: Any) -> Any:
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    try:
        return plain(custom_job(body))
    except json_format.ParseError as error:
        raise Unreadable(str(error)) from error
