"""Render the exact commands that create a run's network and containers. Pure functions."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN, uploaded_data_url
from headway.core.program import is_foreign_image
from headway.core.types import EXPIRES_LABEL, OWNER, OWNER_LABEL, OWNER_NAME, OWNER_NAME_LABEL, RUN_LABEL, Request
from headway.packaging import build
from headway.packaging.dockerfile import CODE_DIR, HOME_DIR, NODE_DIR, SUPERVISOR, image_of_plan
from headway.packaging.supervisor_runtime import PYTHON_VARIABLE as PYTHON
from headway.packaging.supervisor_runtime import RUNTIME_DIR, WHEEL_DIR, start_words, unpacked_path
from headway.rundir.status import END_RECORD_S, local_dir, run_url
from headway.storage import local_path
from headway.targets.docker import secrets
from headway.targets.docker.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan
    from headway.rundir.submission import Owner


# Mounts, as arguments of `docker create`. All paths are the same inside and outside, so that the plan names the same
# files.


KIND = "docker"
SECRETS = "/headway/secrets"
WORK = "/run/headway"  # the supervisor's work folder, a tmpfs: secrets given as files are written there


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    source: str
    at: str
    read_only: bool = False

    def arguments(self) -> list[str]:
        fields = ["type=bind", f"source={self.source}", f"target={self.at}", *(["readonly"] if self.read_only else [])]
        return ["--mount", _csv(fields)]


def mounts(plan: Plan, node: int) -> list[str]:
    """Return all `--mount` arguments of one node's container."""
    volumes: dict[str, Volume] = {}
    for volume in (
        *_data_volumes(plan),
        *_writable_volumes(plan),
        *_node_volumes(plan, node),
        *_secret_volumes(plan, node),
        *_code_volumes(plan),
    ):
        existing = volumes.get(volume.at)
        if existing is None or existing.read_only:  # a writable mount replaces a read-only one
            volumes[volume.at] = volume
    arguments = [argument for at in sorted(volumes) for argument in volumes[at].arguments()]
    return [*arguments, *(argument for mount in plan.job.get("mounts", ()) for argument in _job_mount(mount))]


def folders(plan: Plan) -> list[str]:
    """Return the folders to create before the containers.

    Docker refuses to mount a missing folder, and creates missing mount points as root.
    """
    run_dir = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
    created = [f"{run_dir}/spool", *(f"{run_dir}/node-{node}/spool" for node in range(plan.nodes))]
    if is_foreign_image(plan.job):
        created += [f"{run_dir}/home{name}" for name in ("/.aws", "/.cache/headway", "/.config/gcloud")]
    return [*created, *(volume.source for volume in _writable_volumes(plan))]


def _data_volumes(plan: Plan) -> Iterator[Volume]:
    outputs = str(plan.job["outputs"])
    for source in [*sorted(plan.data), plan.job.get("init_from")]:
        folder = _local_path(uploaded_data_url(plan, str(source), outputs) or source)
        if folder is not None:
            yield Volume(source=str(folder), at=str(folder), read_only=True)


def _writable_volumes(plan: Plan) -> Iterator[Volume]:
    run = local_path(run_url(str(plan.job["outputs"]), RUN))
    export = _local_path(plan.job.get("export", {}).get("to"))
    cache = plan.job.get("cache", {}).get("dir")
    if run is not None:
        yield Volume(source=str(run), at=str(run))
    if export is not None:  # its parent: a bundle is created next to its final path and then moved
        yield Volume(source=str(export.parent), at=str(export.parent))
    if cache:
        yield Volume(source=str(Path(cache).expanduser()), at=str(Path(cache).expanduser()))
    elif any("://" in source for source in plan.data):
        yield Volume(source=str(Path("~/.cache/headway").expanduser()), at=f"{HOME_DIR}/.cache/headway")


def _node_volumes(plan: Plan, node: int) -> Iterator[Volume]:
    run_dir = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
    yield Volume(source=f"{run_dir}/node-{node}", at=NODE_DIR)
    yield Volume(source=f"{run_dir}/spool", at=f"{NODE_DIR}/spool")


def _secret_volumes(plan: Plan, node: int) -> Iterator[Volume]:
    clouds = secrets.clouds_of(plan.job)
    folder = secrets.secrets_dir(run_url(str(plan.job["outputs"]), RUN))
    if secrets.client_secrets(plan) or clouds:
        yield Volume(source=f"{folder}/node-{node}", at=SECRETS)
    for name, cloud in clouds.items():
        if cloud.at:
            yield Volume(source=f"{folder}/{name}", at=cloud.at, read_only=True)


def _code_volumes(plan: Plan) -> Iterator[Volume]:
    """Mount the code, Headway and its interpreter into an image that Headway did not make: it may have none of them."""
    if is_foreign_image(plan.job):
        run_dir = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
        yield Volume(source=f"{run_dir}/code", at=CODE_DIR)
        yield Volume(source=f"{run_dir}/headway", at=WHEEL_DIR, read_only=True)
        yield Volume(source=f"{run_dir}/home", at=HOME_DIR)
    if plan.code.runtime:
        yield Volume(source=str(unpacked_path(plan.code.runtime)), at=RUNTIME_DIR, read_only=True)


def _job_mount(mount: dict[str, Any]) -> list[str]:
    """Return the arguments for one entry of the job's `mounts`."""
    if mount.get("path"):
        return Volume(source=mount["path"], at=mount["at"], read_only=bool(mount.get("read_only"))).arguments()
    server, _, export = str(mount["nfs"]).partition(":")
    options = f"volume-opt=o=addr={server},{'ro' if mount.get('read_only') else 'rw'}"
    fields = ["type=volume", f"target={mount['at']}", "volume-driver=local", "volume-opt=type=nfs", options]
    return ["--mount", _csv([*fields, f"volume-opt=device=:{export}"])]


def _local_path(url: object) -> Path | None:
    if not url or str(url).startswith(("builtin:", "http:", "https:")):
        return None
    return local_path(str(url))


def _csv(fields: list[str]) -> str:
    """Format the fields of `--mount` as CSV, so that a comma or a quote in a path is escaped."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


URL_LABEL, NODE_LABEL = "headway.url", "headway.node"
EXPIRES = "{EXPIRES}"  # placeholder for the time of expiry (Unix seconds), filled in at launch
NVIDIA = Path("/dev/nvidiactl")
# Reads the injected secrets from memory as the supervisor would.
_CLI_ENTRY = (
    "import os, sys; from headway.supervisor.rank_env import take_over; take_over(os.environ); "
    "from headway.cli import main; sys.exit(main(sys.argv[1:]))"
)
WORK_BYTES = 64 << 20  # the plan, and secrets given as files


def requests(plan: Plan, options: Options) -> list[Request]:
    """Return the commands that create image, network and one container per node, and start them, in this order."""
    return [*_image(plan, options), *run_requests(plan, options)]


def run_requests(plan: Plan, options: Options) -> list[Request]:
    """Return the commands for resources that belong to one run and are removed with it."""
    start = {"argv": [options.command, "start", *(container_name(plan, node) for node in range(plan.nodes))]}
    return [
        *_network(plan, options),
        *(Request(name=f"node-{n}.json", body=_container(plan, options, n)) for n in range(plan.nodes)),
        Request(name="start.json", body=start),
    ]


def fill_placeholders(argv: Sequence[str], run: str, owner: Owner, expires: str = "") -> list[str]:
    """Fill in what is known only at launch: the run's name, its owner and its time of expiry."""
    label_values = {
        f"{OWNER_LABEL}={OWNER}": f"{OWNER_LABEL}={owner.id}",
        f"{OWNER_NAME_LABEL}={OWNER_NAME}": f"{OWNER_NAME_LABEL}={owner.name}",
        f"{EXPIRES_LABEL}={EXPIRES}": f"{EXPIRES_LABEL}={expires}",
    }
    return [label_values.get(argument) or argument.replace(RUN, run) for argument in argv]


def container_name(plan: Plan, node: int) -> str:
    return f"{_name_prefix(plan)}-{node}"


def cli_command(plan: Plan, options: Options, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs one Headway verb in a temporary container like that of the run's first node."""
    image_arguments = {str(name): str(value) for name, value in plan.job.get("env", {}).items()}
    path = ":".join(filter(None, (WHEEL_DIR, image_arguments.pop("PYTHONPATH", ""))))
    env = [
        argument
        for name, value in {**image_arguments, "PYTHONPATH": path}.items()
        for argument in ("--env", f"{name}={value}")
    ]
    sandbox = _sandbox(plan, options, 0, options.python, env)
    return [*(options.command, "run", "--rm"), *sandbox, "-c", _CLI_ENTRY, *arguments]


def lifetime_s(plan: Plan) -> float | None:
    """Return the time after which a run may be removed whatever its state, or None for no limit."""
    limits = plan.limits
    if limits.budget_s is None:
        return None
    return limits.budget_s + (limits.max_wait_s or 0.0) + limits.grace_s + 3600.0


def _name_prefix(plan: Plan) -> str:
    """Return the name prefix, with a hash of the outputs: two folders may each hold a run of the same name."""
    outputs = hashlib.sha256(str(plan.job["outputs"]).encode()).hexdigest()[:8]
    return f"headway-{RUN}-{outputs}"


def _image(plan: Plan, options: Options) -> list[Request]:
    """Return the requests that build the image; none if the job names a ready image or this one has been pushed."""
    image = image_of_plan(plan, platform=options.platform)
    if build.reference(plan, image) != image.name:
        return []
    return [
        Request(name="Dockerfile", body={"text": image.dockerfile()}),
        Request(name="image.json", body={"argv": build.build_command(options.command, image)}),
    ]


def _network(plan: Plan, options: Options) -> list[Request]:
    """Return the request for a private network, on which several nodes find each other by name.

    Docker has room for about thirty networks.
    """
    if plan.nodes == 1 or options.network:
        return []
    return [
        Request(
            name="network.json",
            body={"argv": [options.command, "network", "create", *_labels(plan), _name_prefix(plan)]},
        )
    ]


def _container(plan: Plan, options: Options, node: int) -> dict[str, Any]:
    url = run_url(str(plan.job["outputs"]), RUN)
    start = [options.python, "-m", SUPERVISOR, "--run", url]
    if plan.code.runtime:
        start = start_words(SUPERVISOR, "--run", url)
    argv = [
        *(options.command, "create", "--name", container_name(plan, node)),
        *_sandbox(plan, options, node, start[0]),
        *start[1:],
    ]
    return {"argv": argv, "secrets": _secret_references(plan)}


def _sandbox(plan: Plan, options: Options, node: int, entrypoint: str, env: Sequence[str] = ()) -> list[str]:
    """Return all of a container's arguments but its name and the words after its entry point."""
    url = run_url(str(plan.job["outputs"]), RUN)
    return [
        *_labels(plan),
        *("--label", f"{NODE_LABEL}={node}"),
        *_user_arguments(options),
        *_resource_limits(plan, options, node),
        *_network_arguments(plan, options, node),
        *("--tmpfs", f"{WORK}:rw,nosuid,nodev,mode=1777,size={WORK_BYTES}"),
        *mounts(plan, node),
        *_environment_arguments(plan, options, url, node),
        *env,
        *("--workdir", CODE_DIR, "--entrypoint", entrypoint),
        *options.args,
        build.reference(plan, image_of_plan(plan, platform=options.platform)),
    ]


def _labels(plan: Plan) -> list[str]:
    url = run_url(str(plan.job["outputs"]), RUN)
    labels = {RUN_LABEL: RUN, URL_LABEL: url, OWNER_LABEL: OWNER, OWNER_NAME_LABEL: OWNER_NAME}
    if lifetime_s(plan) is not None:
        labels[EXPIRES_LABEL] = EXPIRES
    return [argument for name, value in labels.items() for argument in ("--label", f"{name}={value}")]


def _user_arguments(options: Options) -> list[str]:
    """Run as the host's user, so that this user owns all files written, and without any further privileges."""
    uid, gid = (0, 0) if options.user == "root" else (os.getuid(), os.getgid())
    # Root keeps one capability that it relies on: to access files of other users.
    capabilities = ["--cap-drop", "ALL", *(["--cap-add", "DAC_OVERRIDE"] if uid == 0 else [])]
    # Disable SELinux labels; otherwise the user's folders would have to be relabelled before mounting.
    security = ["--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
    user_namespace = ["--userns", "keep-id"] if uid and Path(options.command).name == "podman" else []
    return [*user_namespace, "--user", f"{uid}:{gid}", *capabilities, *security]


def _resource_limits(plan: Plan, options: Options, node: int) -> list[str]:
    resources = plan.job.get("resources", {})
    # Any `docker stop`, including the user's own, then waits for a checkpoint.
    arguments = ["--stop-timeout", str(math.ceil(plan.limits.grace_s + END_RECORD_S)), "--shm-size", str(options.shm)]
    if resources.get("memory"):  # no swap: a run that does not fit is killed instead of slowed down for days
        arguments += ["--memory", str(resources["memory"]), "--memory-swap", str(resources["memory"])]
    if resources.get("cpus"):
        arguments += ["--cpus", str(resources["cpus"])]
    accelerator = resources.get("accelerator")
    if accelerator and NVIDIA.exists():
        arguments += _gpu_arguments(
            options, [str(node * accelerator["count"] + i) for i in range(accelerator["count"])]
        )
    return arguments


def _gpu_arguments(options: Options, devices: list[str]) -> list[str]:
    """Give each node its own devices."""
    if Path(options.command).name == "podman":
        return [argument for device in devices for argument in ("--device", f"nvidia.com/gpu={device}")]
    return ["--gpus", f'"device={",".join(devices)}"']


def _network_arguments(plan: Plan, options: Options, node: int) -> list[str]:
    if options.network:
        return ["--network", options.network]
    return ["--network", _name_prefix(plan), "--network-alias", f"node-{node}"] if plan.nodes > 1 else []


def _environment_arguments(plan: Plan, options: Options, url: str, node: int) -> list[str]:
    fixed = {
        "HEADWAY_RUN": RUN,
        "HEADWAY_RUN_URL": url,
        "HEADWAY_TARGET": KIND,
        "HEADWAY_CODE_DIR": CODE_DIR,
        "HEADWAY_SPOOL": f"{NODE_DIR}/spool",
        "HEADWAY_WORK_DIR": WORK,
    }
    clouds = secrets.clouds_of(plan.job)
    if secrets.client_secrets(plan) or clouds:
        fixed["HEADWAY_SECRETS_DIR"] = SECRETS
    if plan.nodes > 1:
        fixed |= {"HEADWAY_HOSTS": ",".join(f"node-{n}" for n in range(plan.nodes)), "HEADWAY_NODE": str(node)}
    if is_foreign_image(plan.job):  # images built by Headway set these themselves
        python = {PYTHON: options.python} if plan.code.runtime else {"PYTHONPATH": WHEEL_DIR}
        fixed |= {"HOME": HOME_DIR, "USER": "headway", **python}
    # Name only: docker takes the value from this shell, if set. None of these is secret.
    plain = sorted({name for cloud in clouds.values() for name in cloud.plain})
    arguments = [*(f"{name}={value}" for name, value in fixed.items()), *plain]
    return [argument for pair in arguments for argument in ("--env", pair)]


def _secret_references(plan: Plan) -> dict[str, str]:
    """Return where the values injected through memory come from, never the values."""
    clouds = secrets.clouds_of(plan.job).values()
    references = {name: f"env:{name}, where set" for cloud in clouds for name in cloud.secret}
    references |= {
        container_path: f"file:${variable} or {default}, where there"
        for cloud in clouds
        for container_path, (variable, default) in cloud.files.items()
    }
    return {**references, **secrets.client_secrets(plan)}
