"""The run in a container on the host, through the engine there. Pure: the last part of start.sh.

Everything keeps its path, so that the same plan means the same files inside and outside.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from headway.image import build
from headway.image.blueprint import SUPERVISOR, Blueprint, of_plan
from headway.image.context import context
from headway.planning.model import RUN
from headway.storage import local_path
from headway.targets.base import RUN_LABEL
from headway.targets.here import FAREWELL_S
from headway.targets.ssh.host import Host
from headway.targets.ssh.layout import is_here
from headway.targets.ssh.mirror import send_file, side_by_side
from headway.targets.ssh.options import Options

if TYPE_CHECKING:
    from headway.planning.model import Plan

CONTEXT = "image"  # beside the script: the folder to build from
VARIABLES = ("HEADWAY_RUN", "HEADWAY_RUN_URL", "HEADWAY_TARGET", "HEADWAY_CLIENT_URL", "HEADWAY_CLIENT",
             "HEADWAY_CODE_DIR", "HEADWAY_SPOOL", "HEADWAY_PLAN_FILE", "HEADWAY_PLACE", "HEADWAY_HOSTS", "HEADWAY_NODE",
             "HEADWAY_MASTER_PORT", "HEADWAY_SECRETS_STDIN", "HEADWAY_WORK_DIR", "PYTHONPATH",
             "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_REGION",
             "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "STORAGE_EMULATOR_HOST")  # fmt: skip

BUILD = r"""
# -- the image: by its content's name, so it is built once
if ! {engine} image inspect {image} > /dev/null 2>&1; then
  {engine} build --force-rm --tag {image} --build-arg PIP_INDEX_URL --build-arg PIP_EXTRA_INDEX_URL \
    "$HEADWAY_PLACE/image" || fail "the image cannot be built"
fi
"""

PULL = r"""
# -- the image, as the job names it
{engine} image inspect {image} > /dev/null 2>&1 || {engine} pull {image} || fail "the image cannot be pulled"
"""

RUN_IT = r"""
# -- the supervisor as process 1. What it may know besides comes over standard input; it goes with the container.
gpus={gpus}
[ -e /dev/nvidiactl ] || gpus=
work=${{HEADWAY_WORK_DIR:+--mount type=bind,source=$HEADWAY_WORK_DIR,target=$HEADWAY_WORK_DIR}}
# shellcheck disable=SC2086
exec {engine} run --rm --interactive --name "headway-{run}-${{HEADWAY_NODE:-0}}" --network host \
  --label {label}={run} --user "$(id -u):$(id -g)" --cap-drop ALL --security-opt no-new-privileges \
  --shm-size {shm} --stop-timeout {grace} $gpus $work {limits} \
  --volume "$HEADWAY_PLACE:$HEADWAY_PLACE" {volumes} \
  {variables} --env HOME=/tmp --workdir "$HEADWAY_CODE_DIR" --entrypoint python3 \
  {image} -m {supervisor} --run "$HEADWAY_RUN_URL" <&3 3<&-
"""


def start(plan: Plan, options: Options) -> str:
    engine, image = str(options.engine), shlex.quote(image_of(plan))
    how = PULL if built(plan) is None else BUILD
    return how.format(engine=engine, image=image) + RUN_IT.format(
        engine=engine,
        image=image,
        run=RUN,
        label=RUN_LABEL,
        shm=options.shm,
        grace=math.ceil(plan.limits.grace_s + FAREWELL_S),
        gpus=shlex.quote("--gpus all" if engine == "docker" else "--device nvidia.com/gpu=all"),
        limits=_limits(plan),
        volumes=" ".join(_volumes(plan, options)),
        variables=" ".join(f"--env {name}" for name in VARIABLES),
        supervisor=SUPERVISOR,
    )


def image_of(plan: Plan) -> str:
    return build.reference(plan, of_plan(plan))


def built(plan: Plan) -> Blueprint | None:
    """The image to be built there; None where a ready one is named or has been pushed."""
    image = of_plan(plan)
    return image if image_of(plan) == image.name else None


def send_context(host: Host, plan: Plan, place: str) -> None:
    """What the image is built from."""
    image = built(plan)
    if image is None:
        return
    with context(image, str(plan.job["outputs"])) as folder:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]

        def send(each: Host, path: Path) -> None:
            send_file(each, path, f"{place}/{CONTEXT}/{path.relative_to(folder).as_posix()}")

        side_by_side(host, send, files)


def _limits(plan: Plan) -> str:
    wanted = plan.job.get("resources", {})
    words = [f"--memory {wanted['memory']} --memory-swap {wanted['memory']}"] if wanted.get("memory") else []
    return " ".join([*words, *([f"--cpus {wanted['cpus']}"] if wanted.get("cpus") else [])])


def _volumes(plan: Plan, options: Options) -> list[str]:
    """What the plan as read there names: the folder, data that was brought, data that was there."""
    words = ['--volume "$HEADWAY_FOLDERS:$HEADWAY_FOLDERS"'] if is_here(options, str(plan.job["outputs"])) else []
    if any(is_here(options, source) for source in plan.data):
        words.append('--volume "$HEADWAY_DATA:$HEADWAY_DATA:ro"')
    shared = [str(plan.job["outputs"]), *plan.data]
    for source in sorted(
        {str(local_path(each)) for each in shared if not is_here(options, each) and "://" not in each}
    ):
        if not source.startswith("builtin:") and source != "None":
            words.append(f"--volume {shlex.quote(f'{source}:{source}')}")
    return words
