"""Parts of start scripts that targets share."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from headway.core.quoting import setup_steps
from headway.packaging.dependencies import Dependencies

if TYPE_CHECKING:
    from headway.core.plan import Plan


def setup_commands(plan: Plan, reason: str) -> str:
    """Render the job's `setup` in the script's own shell, each command with its failure; empty if there is none."""
    commands = [str(command) for command in plan.job.get("setup", ())]
    if not commands:
        return ""
    steps = setup_steps(commands)
    comment = f"# -- setup: at every start, in this shell, so that {reason}"
    return "\n".join([comment, *steps, 'cd "$HEADWAY_CODE_DIR" || exit'])


def install_commands(needed: Dependencies) -> list[str]:
    """Render what installs a project's dependencies into "$env", with the script's own functions `install` and `fail`.

    The project itself is installed from a copy: its build leaves files behind that are not the program's.
    """
    lines = []
    if needed.requirements:
        file = shlex.quote(needed.requirements)
        lines.append(f'  install --requirement {file} || fail "the requirements cannot be installed"')
    if needed.listed:
        words = shlex.join(needed.listed)
        lines.append(f'  install {words} || fail "the dependencies of {needed.source} cannot be installed"')
    if needed.install:
        lines += [
            '  rm -rf "$env-project"',
            '  cp -R "$HEADWAY_CODE_DIR" "$env-project" || fail "the code cannot be copied"',
            f'  install "$env-project" || fail "the project cannot be installed from {needed.source}"',
            '  rm -rf "$env-project"',
        ]
    return lines
