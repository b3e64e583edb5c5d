"""What of ours is on the daemon: containers and networks, found by their labels alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.image.engine import Engine, Gone
from headway.storage import same_place
from headway.targets.base import EXPIRES_LABEL, OWNER_LABEL, OWNER_NAME_LABEL, RUN_LABEL
from headway.targets.docker.calls import NODE_LABEL, URL_LABEL

_LOOKS = 5  # something may vanish between being listed and being looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """A container or a network that carries our label."""

    kind: str
    id: str
    name: str
    run: str
    url: str
    expires: str = ""
    owner: str = ""  # empty: made by a Headway that did not say
    owner_name: str = ""
    node: int = 0
    state: str = ""  # created, running, paused, restarting, removing, exited or dead; empty for a network
    exit_code: int = 0
    trouble: str = ""  # what the daemon says of its end

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.id[:12]})"

    @property
    def live(self) -> bool:
        return self.state in ("running", "paused", "restarting")


def containers(engine: Engine, command: str, url: str | None = None) -> list[Thing]:
    """Those of one run, or of all, by node."""
    found = [_container(item) for item in _listed(engine, [command, "container"], ["ls", "--all", "--no-trunc"])]
    return sorted(_of(found, url), key=lambda thing: (thing.url, thing.node))


def networks(engine: Engine, command: str, url: str | None = None) -> list[Thing]:
    found = [_network(item) for item in _listed(engine, [command, "network"], ["ls", "--no-trunc"])]
    return _of(found, url)


def _of(things: list[Thing], url: str | None) -> list[Thing]:
    return [thing for thing in things if thing.run and (url is None or same_place(thing.url, url))]


def _listed(engine: Engine, noun: list[str], ls: list[str]) -> list[dict[str, Any]]:
    for _ in range(_LOOKS):
        ids = engine([*noun, *ls, "--quiet", "--filter", f"label={RUN_LABEL}"]).split()
        if not ids:
            return []
        try:
            found: list[dict[str, Any]] = json.loads(engine([*noun, "inspect", *ids]))
            return found
        except Gone:
            continue
    return []


def _container(item: Mapping[str, Any]) -> Thing:
    state, labels = item["State"], item["Config"].get("Labels") or {}
    trouble = "out of memory" if state.get("OOMKilled") else str(state.get("Error") or "")
    return Thing(
        kind="container",
        id=item["Id"],
        name=str(item["Name"]).lstrip("/"),
        state=str(state["Status"]).replace("stopped", "exited").replace("configured", "created"),  # podman's words
        exit_code=int(state.get("ExitCode") or 0),
        trouble=trouble,
        node=int(labels.get(NODE_LABEL) or 0),
        **_labels(labels),
    )


def _network(item: Mapping[str, Any]) -> Thing:
    plain = {key.lower(): value for key, value in item.items()}  # podman writes its keys small
    return Thing(kind="network", id=plain["id"], name=plain["name"], **_labels(plain.get("labels") or {}))


def _labels(labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "run": labels.get(RUN_LABEL, ""),
        "url": labels.get(URL_LABEL, ""),
        "expires": labels.get(EXPIRES_LABEL, ""),
        "owner": labels.get(OWNER_LABEL, ""),
        "owner_name": labels.get(OWNER_NAME_LABEL, ""),
    }
