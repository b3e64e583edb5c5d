"""Patch the training classes of known frameworks right after the program has imported them.

A finder at the front of `sys.meta_path` waits for the modules below. Nothing is imported that the program does not
import; a failure prints one line, and the program continues without the integration.
"""

import importlib
import importlib.util
import sys
from typing import Any

from . import stacks

# Module that defines the class -> the integration that patches it.
TARGETS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "keras.src.models.model": "keras",
}


def report_failure(what: str, error: BaseException) -> None:
    """Say in one line that an integration failed and is off."""
    text = " ".join(str(error).split())[:300]
    sys.stderr.write(
        f"headway: the integration of {what} failed and is off: {type(error).__name__}: {text}; "
        "to switch it off: env: {HEADWAY_INTEGRATIONS: 0}\n"
    )


class Finder:
    """Meta-path finder that adds a patch to the loading of the modules in TARGETS."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in TARGETS or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                _patch_after_exec(spec.loader, TARGETS[name])
            return spec
        except Exception as error:  # noqa: BLE001 - the other finders import the program's module
            report_failure(TARGETS[name], error)
            return None
        finally:
            self._searching = False


def _patch_after_exec(loader: Any, integration: str) -> None:
    original = loader.exec_module

    def exec_module(module: Any) -> None:
        original(module)
        apply(integration, module)

    # On the instance: its type stays what the program's tools (inspect, debuggers) know.
    loader.exec_module = exec_module


def apply(integration: str, module: Any) -> None:
    """Patch a framework's module that has just been executed."""
    try:
        importlib.import_module(f".{integration}", __package__).patch(module)
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        report_failure(integration, error)


def install() -> None:
    """Wait for the frameworks of TARGETS; patch those that are imported already. Let the supervisor see our stacks."""
    stacks.register()
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    for name, integration in TARGETS.items():
        if name in sys.modules:
            apply(integration, sys.modules[name])
