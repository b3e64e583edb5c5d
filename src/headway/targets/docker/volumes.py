"""Which folders of this machine a container sees, as the words of `docker create`. Pure.

Everything keeps its path, so that the same plan means the same files inside and outside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.image.blueprint import CODE, HOME, NODE
from headway.planning.model import RUN
from headway.storage import local_path
from headway.targets.docker import credentials, memory
from headway.targets.here import place_of, run_url

if TYPE_CHECKING:
    from headway.planning.model import Plan

KIND = "docker"
SECRETS = "/headway/secrets"
WHEEL = "/headway/wheel"  # Headway itself, for an image that was not built by it
WORK = "/run/headway"  # the supervisor's own folder, in memory: secrets given as files are written there


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    source: str
    at: str
    read_only: bool = False

    def words(self) -> list[str]:
        fields = ["type=bind", f"source={self.source}", f"target={self.at}", *(["readonly"] if self.read_only else [])]
        return ["--mount", _csv(fields)]


def mounts(plan: Plan, node: int) -> list[str]:
    """All `--mount` words of one node's container."""
    chosen: dict[str, Volume] = {}
    for volume in (*_data(plan), *_written(plan), *_node(plan, node), *_secrets(plan, node), *_code(plan)):
        known = chosen.get(volume.at)
        if known is None or known.read_only:  # what is written to may also be read
            chosen[volume.at] = volume
    words = [word for at in sorted(chosen) for word in chosen[at].words()]
    return [*words, *(word for mount in plan.job.get("mounts", ()) for word in _asked(mount))]


def folders(plan: Plan) -> list[str]:
    """Folders that nobody may have made yet. Docker refuses to mount what is not there, and makes as root what is
    mounted upon."""
    place = place_of(run_url(str(plan.job["outputs"]), RUN), KIND)
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
    if export is not None:  # its parent: a bundle is made beside it and moved there
        yield Volume(source=str(export.parent), at=str(export.parent))
    if cache:
        yield Volume(source=str(Path(cache).expanduser()), at=str(Path(cache).expanduser()))
    elif any("://" in source for source in plan.data):
        yield Volume(source=str(Path("~/.cache/headway").expanduser()), at=f"{HOME}/.cache/headway")


def _node(plan: Plan, node: int) -> Iterator[Volume]:
    place = place_of(run_url(str(plan.job["outputs"]), RUN), KIND)
    yield Volume(source=f"{place}/node-{node}", at=NODE)
    yield Volume(source=f"{place}/spool", at=f"{NODE}/spool")


def _secrets(plan: Plan, node: int) -> Iterator[Volume]:
    clouds = credentials.used_by(plan.job)
    folder = memory.folder_of(run_url(str(plan.job["outputs"]), RUN))
    if memory.brought(plan) or clouds:
        yield Volume(source=f"{folder}/node-{node}", at=SECRETS)
    for name, cloud in clouds.items():
        if cloud.at:
            yield Volume(source=f"{folder}/{name}", at=cloud.at, read_only=True)


def _code(plan: Plan) -> Iterator[Volume]:
    """A ready image has neither our code nor ourselves in it, as far as we know: both are brought."""
    if plan.job.get("image", {}).get("uri"):
        place = place_of(run_url(str(plan.job["outputs"]), RUN), KIND)
        yield Volume(source=f"{place}/code", at=CODE)
        yield Volume(source=f"{place}/headway", at=WHEEL, read_only=True)
        yield Volume(source=f"{place}/home", at=HOME)


def _asked(mount: dict[str, Any]) -> list[str]:
    """One entry of the job's `mounts`."""
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
    """`--mount` reads comma-separated values: a comma or a quote in a path is quoted as they are there."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()
