"""Render start.sh, the human-readable script that a machine runs. Pure functions.

The watchdog runs it on the machine, with the run's variables set and the secrets on its standard input.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.plan import RUN
from headway.core.types import RUN_LABEL
from headway.packaging import build, dependencies
from headway.packaging import supervisor_runtime as runtime
from headway.packaging.context import context
from headway.packaging.dockerfile import SUPERVISOR, AnyImage, image_of_plan
from headway.packaging.image_reuse import requirements_hash
from headway.packaging.own_dockerfile import OwnImage
from headway.rundir.status import END_RECORD_S
from headway.storage import local_path
from headway.targets.shell import install_commands, setup_commands
from headway.targets.ssh.connection import Host
from headway.targets.ssh.options import Options, is_local
from headway.targets.ssh.sync import map_in_parallel, send_file

if TYPE_CHECKING:
    from headway.core.plan import Plan


# Running in a container on the host: the last part of start.sh. All paths are the same inside and outside, so that the
# plan names the same files.


CONTEXT = "image"  # the build context, a folder next to the script
VARIABLES = ("HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_TARGET", "HEADWAY_CLIENT_URL", "HEADWAY_CLIENT",
             "HEADWAY_CODE_DIR", "HEADWAY_SPOOL", "HEADWAY_PLAN_FILE", "HEADWAY_PLACE", "HEADWAY_HOSTS", "HEADWAY_NODE",
             "HEADWAY_MASTER_PORT", "HEADWAY_SECRETS_STDIN", "HEADWAY_WORK_DIR", "PYTHONPATH",
             "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_REGION",
             "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "STORAGE_EMULATOR_HOST")  # fmt: skip

BUILD = r"""
# -- build the image, once: its name is a hash of its content
if ! {engine} image inspect {image} > /dev/null 2>&1; then
  {engine} build --force-rm --tag {image} --build-arg PIP_INDEX_URL --build-arg PIP_EXTRA_INDEX_URL \
    {context} || fail "the image cannot be built"
fi
"""

PULL = r"""
# -- pull the job's image
{engine} image inspect {image} > /dev/null 2>&1 || {engine} pull {image} || fail "the image cannot be pulled"
"""

RUN_IT = r"""
# -- run the supervisor as process 1. It gets the secrets over standard input; they end with the container.
gpus={gpus}
[ -e /dev/nvidiactl ] || gpus=
work=${{HEADWAY_WORK_DIR:+--mount type=bind,source=$HEADWAY_WORK_DIR,target=$HEADWAY_WORK_DIR}}
# shellcheck disable=SC2086
exec {engine} run --rm --interactive --name "headway-{run}-${{HEADWAY_NODE:-0}}" --network host \
  --label {label}={run} --user "$(id -u):$(id -g)" --cap-drop ALL --security-opt no-new-privileges \
  --shm-size {shm} --stop-timeout {grace} $gpus $work {limits} \
  --volume "$HEADWAY_PLACE:$HEADWAY_PLACE" {volumes} \
  {variables} --env HOME=/tmp --workdir "$HEADWAY_CODE_DIR" --entrypoint {entrypoint} \
  {image} {words} --run "$HEADWAY_RUN_URL" <&3 3<&-
"""


def start(plan: Plan, options: Options) -> str:
    engine, image = str(options.engine), shlex.quote(image_of(plan))
    to_build = built(plan)
    how = PULL if to_build is None else BUILD
    context = _context_words(to_build) if to_build is not None else ""
    start_words = ["python3", "-m", SUPERVISOR]
    if plan.code.runtime:
        root = f'"$HEADWAY_DIR/runtimes/{runtime_folder(plan)}"'
        start_words = runtime.start_words(SUPERVISOR, root=root, wheel='"$HEADWAY_PLACE/headway"')
    return how.format(engine=engine, image=image, context=context) + RUN_IT.format(
        engine=engine,
        image=image,
        run=RUN,
        label=RUN_LABEL,
        shm=options.shm,
        grace=math.ceil(plan.limits.grace_s + END_RECORD_S),
        gpus=shlex.quote("--gpus all" if engine == "docker" else "--device nvidia.com/gpu=all"),
        limits=_limits(plan),
        volumes=" ".join(_volumes(plan, options)),
        variables=" ".join(f"--env {name}" for name in VARIABLES if not (name == "PYTHONPATH" and plan.code.runtime)),
        entrypoint=start_words[0],
        words=" ".join(start_words[1:]),
    )


def runtime_folder(plan: Plan) -> str:
    """Return the name of the folder below `runtimes` on the host that has the supervisor's own interpreter."""
    return plan.code.runtime.removesuffix(".tar.gz")


def _context_words(image: AnyImage) -> str:
    """Return the words of `docker build` that name the Dockerfile, if it has another name, and the context."""
    file, folder = (f'"$HEADWAY_PLACE/"{shlex.quote(path)}' for path in image.build_paths(CONTEXT))
    if isinstance(image, OwnImage):
        return f"--platform {shlex.quote(image.platform)} --file {file} {folder}"
    return f'"$HEADWAY_PLACE/{CONTEXT}"'


def image_of(plan: Plan) -> str:
    return build.reference(plan, image_of_plan(plan))


def built(plan: Plan) -> AnyImage | None:
    """Return the image to build on the host, or None if the job names a ready one or it has been pushed."""
    image = image_of_plan(plan)
    return image if image_of(plan) == image.name else None


def send_context(host: Host, plan: Plan, place: str) -> None:
    """Upload the build context, unless no image is to be built."""
    image = built(plan)
    if image is None:
        return
    with context(image, str(plan.job["outputs"])) as folder:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]

        def send(each: Host, path: Path) -> None:
            send_file(each, path, f"{place}/{CONTEXT}/{path.relative_to(folder).as_posix()}")

        map_in_parallel(host, send, files)


def _limits(plan: Plan) -> str:
    requested = plan.job.get("resources", {})
    arguments = (
        [f"--memory {requested['memory']} --memory-swap {requested['memory']}"] if requested.get("memory") else []
    )
    return " ".join([*arguments, *([f"--cpus {requested['cpus']}"] if requested.get("cpus") else [])])


def _volumes(plan: Plan, options: Options) -> list[str]:
    """Return the mounts for the plan's paths: the run folder, uploaded data, and data already on the host."""
    arguments = (
        ['--volume "$HEADWAY_DIR/runs:$HEADWAY_DIR/runs"'] if is_local(options, str(plan.job["outputs"])) else []
    )
    if plan.code.runtime:
        arguments.append('--volume "$HEADWAY_DIR/runtimes:$HEADWAY_DIR/runtimes:ro"')
    if any(is_local(options, source) for source in plan.data):
        arguments.append('--volume "$HEADWAY_DIR/data:$HEADWAY_DIR/data:ro"')
    shared = [str(plan.job["outputs"]), *plan.data]
    for source in sorted(
        {str(local_path(each)) for each in shared if not is_local(options, each) and "://" not in each}
    ):
        if not source.startswith("builtin:") and source != "None":
            arguments.append(f"--volume {shlex.quote(f'{source}:{source}')}")
    for mount in plan.job.get("mounts", ()):  # checked: a path of the host, the same inside
        mode = ":ro" if mount.get("read_only") else ""
        arguments.append(f"--volume {shlex.quote(mount['path'] + ':' + mount['at'] + mode)}")
    return arguments


HEAD = r"""
# Only the supervisor reads the secrets on standard input: move them to descriptor 3. The commands below get no input.
exec 3<&0 </dev/null
fail() { echo "headway: $1" >&2; exit 1; }
cd "$HEADWAY_CODE_DIR" || fail "no $HEADWAY_CODE_DIR"
"""

SYSTEM_PYTHON = r"""
# -- requirements: one environment per set of requirements, on top of the interpreter's own packages
env="$HEADWAY_DIR/envs/{key}"
mkdir -p "$HEADWAY_DIR/envs" && exec 9> "$env.lock" && flock 9
if [ ! -e "$env/ready" ]; then
  rm -rf "$env"
  "$python" -m venv --system-site-packages "$env" || fail "no virtual environment could be made with $python"
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  # If the interpreter is in a virtual environment itself, make that one's packages importable too.
  "$python" -c "$packages" > "$("$env/bin/python" -c "$packages")/lent.pth" || fail "$python does not run"
  install() {{ "$env/bin/python" -m pip install --disable-pip-version-check "$@"; }}
{installs}
  touch "$env/ready"
fi
exec 9>&-
python="$env/bin/python"
"""

VENV = r"""
# -- one environment per set of requirements, made by uv, which also installs Python, or by pip
env="$HEADWAY_DIR/envs/{key}"
mkdir -p "$HEADWAY_DIR/envs" && exec 9> "$env.lock" && flock 9
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
# -- replace this shell by the supervisor
exec "$python" -m headway.runtime.worker --run "$HEADWAY_RUN_URL" <&3 3<&-
"""


def start_script(plan: Plan, options: Options, needed: str) -> str:
    """Render start.sh.

    `needed` lists Headway's own requirements for this job, to install if no interpreter is named.
    """
    comment = f"# {plan.job['name']}: {plan.nodes} × {plan.processes} ranks. Made by Headway {plan.headway}."
    parts = ["#!/bin/bash\n" + comment, HEAD, setup_commands(plan, "its exports stay in effect")]
    if options.engine:
        parts.append(start(plan, options))
    else:
        parts += [_environment(plan, options, needed), START]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _environment(plan: Plan, options: Options, needed: str) -> str:
    own = install_commands(dependencies.of_record(plan.job))
    key = _key(plan, options, needed)
    if options.python:
        named = f"python={shlex.quote(options.python)}\n"
        return named + (SYSTEM_PYTHON.format(key=key, installs="\n".join(own)) if own else "")
    headway_requirements = [
        '  install --requirement "$HEADWAY_PLACE/headway.txt" || fail "the requirements of Headway cannot be installed"'
    ]
    version = ".".join(plan.environment["python"].split(".")[:2])
    return VENV.format(key=key, version=version, installs="\n".join([*own, *headway_requirements]))


def _key(plan: Plan, options: Options, needed: str) -> str:
    """Return the environment's name, a hash of all requirements. The code counts only if it is installed itself."""
    own = dependencies.of_record(plan.job)
    code = plan.code.sha256 if own.install else requirements_hash(plan.code.sha256) if own.requirements else ""
    text = json.dumps(
        [
            [code, *own.listed] if own.listed else code,
            needed,
            options.python,
            plan.environment["python"],
            list(plan.job.get("setup", ())),
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]
