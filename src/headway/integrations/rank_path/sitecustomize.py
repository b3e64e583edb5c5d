"""Start Headway's integrations in a program's interpreter, then run the sitecustomize module that this one hides.

Python imports the first `sitecustomize` on its path at every start, also in the processes that a launcher such as
torchrun starts. (`usercustomize` would be hidden from nobody, but a virtual environment does not import it.)

A program may start any Python: this file is read by all of them, also Python 2, and does nothing in those before 3.6.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_integrations():
    # type: () -> None
    from importlib import import_module, util

    folder = os.path.dirname(_HERE)
    spec = util.spec_from_file_location(
        "headway_integrations", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = util.module_from_spec(spec)
    sys.modules["headway_integrations"] = package
    spec.loader.exec_module(package)
    import_module("headway_integrations.hook").install()


def _run_hidden():
    # type: () -> None
    from importlib import machinery, util

    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _add_packages():
    # type: () -> None
    """Let a program that imports Headway find the packages that Headway brought along, after all of its own."""
    for folder in os.environ.get("HEADWAY_PACKAGES", "").split(os.pathsep):
        if folder and sys.version_info >= (3, 10):
            sys.path.append(folder)


if sys.version_info >= (3, 6):  # noqa: UP036 - read by older ones too
    try:
        _add_packages()
        if "HEADWAY_ATTEMPT" in os.environ and os.environ.get("HEADWAY_INTEGRATIONS") != "0":
            _start_integrations()
    except Exception as error:  # noqa: BLE001 - the program must start, whatever is wrong here
        sys.stderr.write("headway: integrations are off: {}: {}\n".format(type(error).__name__, error))  # noqa: UP032
    _run_hidden()
