"""Helpers for `Target.exec_command`: the answers that targets share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import TargetError

if TYPE_CHECKING:
    from headway.core.types import Handle


def no_process(handle: Handle, what: str) -> TargetError:
    """Return the error for a run of which no container, pod or machine is live."""
    fix = f"headway pull {handle.run}, then `headway.open_run` in a notebook of your own"
    return TargetError(f"no {what} of {handle.run} is running", fix=fix)


def install_in_image(_: str) -> str:
    """Return what to do about a missing JupyterLab where the interpreter is in an image."""
    return "add jupyterlab to the job's requirements, or to its image, and run it again"
