"""start.sh: the whole of what a machine is asked to run, as a script that a person can read. Pure: print it, diff it.

The watchdog runs it there, with the run's variables set and the secrets on its standard input.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from headway.targets.ssh import container
from headway.targets.ssh.options import Options

if TYPE_CHECKING:
    from headway.planning.model import Plan

HEAD = r"""
# What only the supervisor may read waits on descriptor 3; commands below have no input.
exec 3<&0 </dev/null
fail() { echo "headway: $1" >&2; exit 1; }
cd "$HEADWAY_CODE_DIR" || fail "no $HEADWAY_CODE_DIR"
"""

LENT = r"""
# -- requirements: into an environment on top of the interpreter's own packages, made once for these very ones
env="$HEADWAY_ENVS/{key}"
mkdir -p "$HEADWAY_ENVS" && exec 9> "$env.lock" && flock 9
if [ ! -e "$env/ready" ]; then
  rm -rf "$env"
  "$python" -m venv --system-site-packages "$env" || fail "no virtual environment could be made with $python"
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  # An interpreter that is itself in a virtual environment lends its packages too.
  "$python" -c "$packages" > "$("$env/bin/python" -c "$packages")/lent.pth" || fail "$python does not run"
  "$env/bin/python" -m pip install --disable-pip-version-check --requirement {file} \
    || fail "the requirements cannot be installed"
  touch "$env/ready"
fi
exec 9>&-
python="$env/bin/python"
"""

MADE = r"""
# -- an environment, made once for these very requirements: by uv, which also brings the Python, or by pip
env="$HEADWAY_ENVS/{key}"
mkdir -p "$HEADWAY_ENVS" && exec 9> "$env.lock" && flock 9
if [ ! -e "$env/ready" ]; then
  rm -rf "$env"
  PATH="$PATH:$HOME/.local/bin"
  if command -v uv > /dev/null; then
    uv venv --python {version} "$env" || fail "uv cannot make an environment with Python {version}"
    install() {{ uv pip install --python "$env/bin/python" "$@"; }}
  else
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
      || fail "Python here is older than 3.10: curl -LsSf https://astral.sh/uv/install.sh | sh, or name \`python\`"
    python3 -m venv "$env" || fail "no virtual environment could be made: apt-get install python3-venv"
    install() {{ "$env/bin/python" -m pip install --disable-pip-version-check "$@"; }}
  fi
{installs}
  touch "$env/ready"
fi
exec 9>&-
python="$env/bin/python"
"""

START = r"""
# -- the supervisor takes the place of this shell
exec "$python" -m headway.runtime.worker --run "$HEADWAY_RUN_URL" <&3 3<&-
"""


def start_script(plan: Plan, options: Options, needed: str) -> str:
    """`needed` is what Headway itself must have installed for this job, where no interpreter is named."""
    about = f"# {plan.job['name']}: {plan.nodes} × {plan.processes} ranks. Made by Headway {plan.headway}."
    parts = ["#!/bin/bash\n" + about, HEAD, _setup(plan)]
    if options.engine:
        parts.append(container.start(plan, options))
    else:
        parts += [_environment(plan, options, needed), START]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _setup(plan: Plan) -> str:
    commands = [str(command) for command in plan.job.get("setup", ())]
    if not commands:
        return ""
    steps = [f"{{\n{command}\n}} || fail {shlex.quote('setup: ' + command)}" for command in commands]
    about = "# -- setup: at every start, and in this very shell, so that what it exports holds"
    return "\n".join([about, *steps, 'cd "$HEADWAY_CODE_DIR" || exit'])


def _environment(plan: Plan, options: Options, needed: str) -> str:
    name = plan.job.get("requirements")
    file = shlex.quote(PurePosixPath(name).as_posix()) if name else ""
    key = _key(plan, options, needed)
    if options.python:
        named = f"python={shlex.quote(options.python)}\n"
        return named + (LENT.format(key=key, file=file) if name else "")
    yours = [f'  install --requirement {file} || fail "the requirements cannot be installed"'] if name else []
    ours = ['  install --requirement "$HEADWAY_PLACE/headway.txt" || fail "what Headway needs cannot be installed"']
    version = ".".join(plan.environment["python"].split(".")[:2])
    return MADE.format(key=key, version=version, installs="\n".join([*yours, *ours]))


def _key(plan: Plan, options: Options, needed: str) -> str:
    """Another requirement is another environment. Without a file of its own the code plays no part."""
    own = plan.code.sha256 if plan.job.get("requirements") else ""
    text = json.dumps([own, needed, options.python, plan.environment["python"], list(plan.job.get("setup", ()))])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
