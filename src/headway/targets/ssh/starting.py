"""Laying ready on every host what a run needs there, and starting it. All or nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import TargetError
from headway.image.requirements import extras, needed
from headway.owner import owner
from headway.planning.package import archive_path
from headway.planning.wheel import wheel_path
from headway.secrets import parse, resolve
from headway.storage import join, local_path, open_store
from headway.targets import labelled
from headway.targets.docker import credentials
from headway.targets.here import FAREWELL_S
from headway.targets.ssh import container, script
from headway.targets.ssh.bringing import bring
from headway.targets.ssh.host import Host
from headway.targets.ssh.layout import KIND, LABEL, NEEDED, PLAN_FILE, SCRIPT, Layout, as_read_there, to_bring
from headway.targets.ssh.mirror import Mirror
from headway.targets.ssh.options import Options

if TYPE_CHECKING:
    from headway.planning.model import Plan

BROUGHT = ("env", "file")  # kinds of reference that mean something on the machine of the client only
INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
SETTING_UP_S = 3600.0  # beyond the budget, for environments that are made there
LEAVING_S = 120.0  # before self_down, where the outputs are safe already
Say = Callable[[str], None]


def lay_ready(
    plan: Plan, hosts: Sequence[Host], where: Layout, options: Options, here: Path, say: Say, *, left: Plan
) -> None:
    """Data, code, Headway itself, the script and the plan, on every host. `left` has what is left of the budget."""
    wheel, archive = _code(plan, plan.code.wheel), _code(plan, f"{plan.code.sha256}.tar.gz")
    text = script.start_script(plan, options, needed_by(plan))
    for node, host in enumerate(hosts):
        place = where.place(node)
        moved = {source: bring(host, source, say) for source in to_bring(plan.job, options)}
        host.send(f"{place}/{LABEL}", json.dumps(labels(left, where)).encode())
        host.ask("unpack", archive, kind="tar", to=f"{place}/code", sha256=plan.code.sha256)
        host.ask("unpack", wheel, kind="wheel", to=f"{place}/headway", fresh=True)
        host.send(f"{place}/{NEEDED}", needed_by(plan).encode())
        host.send(f"{place}/{SCRIPT}", text.replace("{RUN}", where.run).encode(), mode=0o755)
        host.send(f"{place}/{PLAN_FILE}", as_read_there(plan, where, moved).to_json().encode())
        if options.engine:
            container.send_context(host, plan, place)
        if where.mirrored:
            folder = local_path(where.url)
            assert folder is not None
            Mirror(host, where.folder, folder, here).push()


def start(plan: Plan, hosts: Sequence[Host], where: Layout, options: Options) -> None:
    """The watchdog of every node. The first one's address is the one it was reached by: its name may mean 127.0.1.1."""
    secrets, files = brought(plan)
    limit = lifetime_s(plan)
    addresses = [str(host.facts["address"]) for host in hosts]
    for node, host in enumerate(hosts):
        env = environment(plan, where, node, addresses)
        if secrets:
            env["HEADWAY_SECRETS_STDIN"] = "1"
        answer = host.ask(
            "start",
            place=where.place(node),
            labels=labels(plan, where),
            env=env,
            secrets=secrets,
            files=files,
            limit_s=limit,
            grace_s=plan.limits.grace_s + FAREWELL_S,
            self_down=options.self_down or "",
            linger_s=options.linger if where.mirrored else LEAVING_S,
        )
        if "trouble" in answer:
            raise TargetError(f"the run cannot be started on {host}: {answer['trouble']}", fix=f"ssh {host}")


def labels(plan: Plan, where: Layout) -> dict[str, str]:
    """By these everything of the run is found again, on any of its hosts, without a record."""
    us = owner()
    known = {
        labelled.RUN: where.run,
        labelled.URL: where.folder,
        labelled.TARGET: KIND,
        "HEADWAY_DIR": where.dir,
        "HEADWAY_CLIENT_URL": where.url,
        "HEADWAY_CLIENT": socket.gethostname() if where.mirrored else "",
        labelled.OWNER: us.id,
        labelled.OWNER_NAME: us.name,
    }
    limit = lifetime_s(plan)
    return known if limit is None else {**known, "HEADWAY_EXPIRES": str(int(time.time() + limit))}


def environment(plan: Plan, where: Layout, node: int, addresses: Sequence[str]) -> dict[str, str]:
    place = where.place(node)
    own = {
        **labels(plan, where),
        "HEADWAY_CODE_DIR": f"{place}/code",
        "HEADWAY_SPOOL": f"{place}/spool",
        "HEADWAY_PLAN_FILE": f"{place}/{PLAN_FILE}",
        "HEADWAY_PLACE": place,
        "HEADWAY_ENVS": f"{where.dir}/envs",
        "HEADWAY_DATA": f"{where.dir}/data",
        "HEADWAY_FOLDERS": f"{where.dir}/runs",
        "PYTHONPATH": f"{place}/headway",  # the Headway that made the plan, whatever the interpreter has installed
        "PYTHONUNBUFFERED": "1",
    }
    own |= {name: os.environ[name] for name in INDEXES if os.environ.get(name)}
    own |= {
        name: os.environ[name]
        for cloud in credentials.used_by(plan.job).values()
        for name in cloud.plain
        if os.environ.get(name) and name != "AWS_PROFILE"
    }
    if len(addresses) > 1:
        # Another port for each run: hosts may be shared.
        port = 12000 + int(where.key, 16) % 5000 * 4 + sum(map(ord, where.run)) % 2 * 2
        own |= {"HEADWAY_HOSTS": ",".join(addresses), "HEADWAY_NODE": str(node), "HEADWAY_MASTER_PORT": str(port)}
    return own


def brought(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Values for the supervisor alone, and credential files by the variable that names them."""
    listed = {name: str(secret["ref"]) for name, secret in plan.job.get("secrets", {}).items()}
    values = {name: resolve(ref) for name, ref in listed.items() if parse(ref).kind in BROUGHT}
    files: dict[str, str] = {}
    for cloud in credentials.used_by(plan.job).values():
        variables, contents = credentials.held(cloud, os.environ)
        values = {**variables, **values}
        files |= {cloud.files[name][0]: content.decode() for name, content in contents.items()}
    return values, files


def references(job: Mapping[str, Any]) -> dict[str, str]:
    """Where the values that go over standard input come from. Never the values."""
    clouds = credentials.used_by(job).values()
    found = {name: f"env:{name}, where set" for cloud in clouds for name in cloud.secret}
    found |= {
        variable: f"file:${variable} or {default}, where there"
        for cloud in clouds
        for variable, default in cloud.files.values()
    }
    return {**found, **{name: str(secret["ref"]) for name, secret in job.get("secrets", {}).items()}}


def lifetime_s(plan: Plan) -> float | None:
    """The limit that the watchdog holds, setting-up included. None: it has no limit."""
    budget = plan.limits.budget_s
    return None if budget is None else budget + plan.limits.grace_s + FAREWELL_S + SETTING_UP_S


def needed_by(plan: Plan) -> str:
    """What Headway needs there, by its wheel: from our cache, or from the outputs of a colleague's run."""
    wheel = wheel_path(plan.code.wheel)
    if not wheel.exists():
        open_store(str(wheel.parent)).write(wheel.name, _code(plan, wheel.name))
    return needed(wheel, extras(plan.job))


def _code(plan: Plan, name: str) -> bytes:
    """From this machine's cache, or from where the launcher has put it."""
    cached = archive_path(plan.code.sha256) if name.endswith(".tar.gz") else wheel_path(name)
    try:
        return cached.read_bytes()
    except OSError:
        return open_store(join(str(plan.job["outputs"]), "code")).read(name)
