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

from headway.core.plan import RUN
from headway.core.types import EXPIRES_LABEL, OWNER, OWNER_LABEL, OWNER_NAME, OWNER_NAME_LABEL, RUN_LABEL, Request
from headway.packaging import build
from headway.packaging.dockerfile import CODE, HOME, NODE, SUPERVISOR, dockerignore, of_plan
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
WHEEL = "/headway/wheel"  # Headway's wheel, for an image that Headway did not build
WORK = "/run/headway"  # the supervisor's work folder, a tmpfs: secrets given as files are written there


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    source: str
    at: str
    read_only: bool = False

    def words(self) -> list[str]:
        fields = ["type=bind", f"source={self.source}", f"target={self.at}", *(["readonly"] if self.read_only else [])]
        return ["--mount", _csv(fields)]


def mounts(plan: Plan, node: int) -> list[str]:
    """Return all `--mount` arguments of one node's container."""
    chosen: dict[str, Volume] = {}
    for volume in (*_data(plan), *_written(plan), *_node(plan, node), *_secrets(plan, node), *_code(plan)):
        known = chosen.get(volume.at)
        if known is None or known.read_only:  # a writable mount replaces a read-only one
            chosen[volume.at] = volume
    words = [word for at in sorted(chosen) for word in chosen[at].words()]
    return [*words, *(word for mount in plan.job.get("mounts", ()) for word in _asked(mount))]


def folders(plan: Plan) -> list[str]:
    """Return the folders to create before the containers.

    Docker refuses to mount a missing folder, and creates missing mount points as root.
    """
    place = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
    own = [f"{place}/spool", *(f"{place}/node-{node}/spool" for node in range(plan.nodes))]
    if plan.job.get("image", {}).get("uri"):
        own += [f"{place}/home{name}" for name in ("/.aws", "/.cache/headway", "/.config/gcloud")]
    return [*own, *(volume.source for volume in _written(plan))]


def _data(plan: Plan) -> Iterator[Volume]:
    for source in [*sorted(plan.data), plan.job.get("init_from")]:
        folder = _local(source)
        if folder is not None:
            yield Volume(source=str(folder), at=str(folder), read_only=True)


def _written(plan: Plan) -> Iterator[Volume]:
    run = local_path(run_url(str(plan.job["outputs"]), RUN))
    export = _local(plan.job.get("export", {}).get("to"))
    cache = plan.job.get("cache", {}).get("dir")
    if run is not None:
        yield Volume(source=str(run), at=str(run))
    if export is not None:  # its parent: a bundle is created next to its final path and then moved
        yield Volume(source=str(export.parent), at=str(export.parent))
    if cache:
        yield Volume(source=str(Path(cache).expanduser()), at=str(Path(cache).expanduser()))
    elif any("://" in source for source in plan.data):
        yield Volume(source=str(Path("~/.cache/headway").expanduser()), at=f"{HOME}/.cache/headway")


def _node(plan: Plan, node: int) -> Iterator[Volume]:
    place = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
    yield Volume(source=f"{place}/node-{node}", at=NODE)
    yield Volume(source=f"{place}/spool", at=f"{NODE}/spool")


def _secrets(plan: Plan, node: int) -> Iterator[Volume]:
    clouds = secrets.used_by(plan.job)
    folder = secrets.folder_of(run_url(str(plan.job["outputs"]), RUN))
    if secrets.brought(plan) or clouds:
        yield Volume(source=f"{folder}/node-{node}", at=SECRETS)
    for name, cloud in clouds.items():
        if cloud.at:
            yield Volume(source=f"{folder}/{name}", at=cloud.at, read_only=True)


def _code(plan: Plan) -> Iterator[Volume]:
    """Mount the code and Headway into a ready image, which may contain neither."""
    if plan.job.get("image", {}).get("uri"):
        place = local_dir(run_url(str(plan.job["outputs"]), RUN), KIND)
        yield Volume(source=f"{place}/code", at=CODE)
        yield Volume(source=f"{place}/headway", at=WHEEL, read_only=True)
        yield Volume(source=f"{place}/home", at=HOME)


def _asked(mount: dict[str, Any]) -> list[str]:
    """Return the arguments for one entry of the job's `mounts`."""
    if mount.get("path"):
        return Volume(source=mount["path"], at=mount["at"], read_only=bool(mount.get("read_only"))).words()
    server, _, export = str(mount["nfs"]).partition(":")
    options = f"volume-opt=o=addr={server},{'ro' if mount.get('read_only') else 'rw'}"
    fields = ["type=volume", f"target={mount['at']}", "volume-driver=local", "volume-opt=type=nfs", options]
    return ["--mount", _csv([*fields, f"volume-opt=device=:{export}"])]


def _local(url: object) -> Path | None:
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
_VERB = (
    "import os, sys; from headway.supervisor.rank_env import take_over; take_over(os.environ); "
    "from headway.cli import main; sys.exit(main(sys.argv[1:]))"
)
WORK_BYTES = 64 << 20  # the plan, and secrets given as files


def requests(plan: Plan, options: Options) -> list[Request]:
    """Return the commands that create image, network and one container per node, and start them, in this order."""
    return [*_image(plan, options), *gang(plan, options)]


def gang(plan: Plan, options: Options) -> list[Request]:
    """Return the commands for resources that belong to one run and are removed with it."""
    starts = {"argv": [options.command, "start", *(container_name(plan, node) for node in range(plan.nodes))]}
    return [
        *_network(plan, options),
        *(Request(name=f"node-{n}.json", body=_container(plan, options, n)) for n in range(plan.nodes)),
        Request(name="start.json", body=starts),
    ]


def filled(argv: Sequence[str], run: str, owner: Owner, expires: str = "") -> list[str]:
    """Fill in what is known only at launch: the run's name, its owner and its time of expiry."""
    own = {
        f"{OWNER_LABEL}={OWNER}": f"{OWNER_LABEL}={owner.id}",
        f"{OWNER_NAME_LABEL}={OWNER_NAME}": f"{OWNER_NAME_LABEL}={owner.name}",
        f"{EXPIRES_LABEL}={EXPIRES}": f"{EXPIRES_LABEL}={expires}",
    }
    return [own.get(word) or word.replace(RUN, run) for word in argv]


def container_name(plan: Plan, node: int) -> str:
    return f"{_stem(plan)}-{node}"


def verb(plan: Plan, options: Options, words: Sequence[str]) -> list[str]:
    """Return the command that runs one Headway verb in a temporary container like that of the run's first node."""
    asked = {str(name): str(value) for name, value in plan.job.get("env", {}).items()}
    path = ":".join(filter(None, (WHEEL, asked.pop("PYTHONPATH", ""))))
    env = [word for name, value in {**asked, "PYTHONPATH": path}.items() for word in ("--env", f"{name}={value}")]
    return [*(options.command, "run", "--rm"), *_sandbox(plan, options, 0, env), "-c", _VERB, *words]


def lifetime_s(plan: Plan) -> float | None:
    """Return the time after which a run may be removed whatever its state, or None for no limit."""
    limits = plan.limits
    if limits.budget_s is None:
        return None
    return limits.budget_s + (limits.max_wait_s or 0.0) + limits.grace_s + 3600.0


def _stem(plan: Plan) -> str:
    """Return the name prefix, with a hash of the outputs: two folders may each hold a run of the same name."""
    outputs = hashlib.sha256(str(plan.job["outputs"]).encode()).hexdigest()[:8]
    return f"headway-{RUN}-{outputs}"


def _image(plan: Plan, options: Options) -> list[Request]:
    """Return the requests that build the image; none if the job names a ready image or this one has been pushed."""
    image = of_plan(plan, platform=options.platform)
    if build.reference(plan, image) != image.name:
        return []
    return [
        Request(name="Dockerfile", body={"text": image.dockerfile()}),
        Request(name=".dockerignore", body={"text": dockerignore()}),
        Request(name="image.json", body={"argv": build.build_command(options.command, image)}),
    ]


def _network(plan: Plan, options: Options) -> list[Request]:
    """Return the request for a private network, on which several nodes find each other by name.

    Docker has room for about thirty networks.
    """
    if plan.nodes == 1 or options.network:
        return []
    return [
        Request(name="network.json", body={"argv": [options.command, "network", "create", *_labels(plan), _stem(plan)]})
    ]


def _container(plan: Plan, options: Options, node: int) -> dict[str, Any]:
    url = run_url(str(plan.job["outputs"]), RUN)
    argv = [
        *(options.command, "create", "--name", container_name(plan, node)),
        *_sandbox(plan, options, node),
        *("-m", SUPERVISOR, "--run", url),
    ]
    return {"argv": argv, "secrets": _references(plan)}


def _sandbox(plan: Plan, options: Options, node: int, env: Sequence[str] = ()) -> list[str]:
    """Return all of a container's arguments but its name and its command."""
    url = run_url(str(plan.job["outputs"]), RUN)
    return [
        *_labels(plan),
        *("--label", f"{NODE_LABEL}={node}"),
        *_who(options),
        *_limits(plan, options, node),
        *_net(plan, options, node),
        *("--tmpfs", f"{WORK}:rw,nosuid,nodev,mode=1777,size={WORK_BYTES}"),
        *mounts(plan, node),
        *_environment(plan, url, node),
        *env,
        *("--workdir", CODE, "--entrypoint", options.python),
        *options.args,
        build.reference(plan, of_plan(plan, platform=options.platform)),
    ]


def _labels(plan: Plan) -> list[str]:
    url = run_url(str(plan.job["outputs"]), RUN)
    labels = {RUN_LABEL: RUN, URL_LABEL: url, OWNER_LABEL: OWNER, OWNER_NAME_LABEL: OWNER_NAME}
    if lifetime_s(plan) is not None:
        labels[EXPIRES_LABEL] = EXPIRES
    return [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]


def _who(options: Options) -> list[str]:
    """Run as the host's user, so that this user owns all files written, and without any further privileges."""
    uid, gid = (0, 0) if options.user == "root" else (os.getuid(), os.getgid())
    # Root keeps one capability that it relies on: to access files of other users.
    powers = ["--cap-drop", "ALL", *(["--cap-add", "DAC_OVERRIDE"] if uid == 0 else [])]
    # Disable SELinux labels; otherwise the user's folders would have to be relabelled before mounting.
    safety = ["--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
    keep = ["--userns", "keep-id"] if uid and Path(options.command).name == "podman" else []
    return [*keep, "--user", f"{uid}:{gid}", *powers, *safety]


def _limits(plan: Plan, options: Options, node: int) -> list[str]:
    resources = plan.job.get("resources", {})
    # Any `docker stop`, including the user's own, then waits for a checkpoint.
    words = ["--stop-timeout", str(math.ceil(plan.limits.grace_s + END_RECORD_S)), "--shm-size", str(options.shm)]
    if resources.get("memory"):  # no swap: a run that does not fit is killed instead of slowed down for days
        words += ["--memory", str(resources["memory"]), "--memory-swap", str(resources["memory"])]
    if resources.get("cpus"):
        words += ["--cpus", str(resources["cpus"])]
    accelerator = resources.get("accelerator")
    if accelerator and NVIDIA.exists():
        words += _gpus(options, [str(node * accelerator["count"] + i) for i in range(accelerator["count"])])
    return words


def _gpus(options: Options, devices: list[str]) -> list[str]:
    """Give each node its own devices."""
    if Path(options.command).name == "podman":
        return [word for device in devices for word in ("--device", f"nvidia.com/gpu={device}")]
    return ["--gpus", f'"device={",".join(devices)}"']


def _net(plan: Plan, options: Options, node: int) -> list[str]:
    if options.network:
        return ["--network", options.network]
    return ["--network", _stem(plan), "--network-alias", f"node-{node}"] if plan.nodes > 1 else []


def _environment(plan: Plan, url: str, node: int) -> list[str]:
    own = {
        "HEADWAY_RUN": RUN,
        "HEADWAY_RUN_URL": url,
        "HEADWAY_TARGET": KIND,
        "HEADWAY_CODE_DIR": CODE,
        "HEADWAY_SPOOL": f"{NODE}/spool",
        "HEADWAY_WORK_DIR": WORK,
    }
    clouds = secrets.used_by(plan.job)
    if secrets.brought(plan) or clouds:
        own["HEADWAY_SECRETS_DIR"] = SECRETS
    if plan.nodes > 1:
        own |= {"HEADWAY_HOSTS": ",".join(f"node-{n}" for n in range(plan.nodes)), "HEADWAY_NODE": str(node)}
    if plan.job.get("image", {}).get("uri"):
        own |= {"HOME": HOME, "PYTHONPATH": WHEEL, "USER": "headway"}  # images built by Headway set these themselves
    # Name only: docker takes the value from this shell, if set. None of these is secret.
    plain = sorted({name for cloud in clouds.values() for name in cloud.plain})
    words = [*(f"{name}={value}" for name, value in own.items()), *plain]
    return [word for pair in words for word in ("--env", pair)]


def _references(plan: Plan) -> dict[str, str]:
    """Return where the values injected through memory come from, never the values."""
    clouds = secrets.used_by(plan.job).values()
    found = {name: f"env:{name}, where set" for cloud in clouds for name in cloud.secret}
    found |= {
        inside: f"file:${variable} or {default}, where there"
        for cloud in clouds
        for inside, (variable, default) in cloud.files.items()
    }
    return {**found, **secrets.brought(plan)}
