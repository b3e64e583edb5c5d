"""Read a checkpoint on all ranks at once: each file is read by one rank and sent to the others in host memory.

No rank waits in a collective for a store: while files are read, the ranks exchange a short message every few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.errors import HeadwayError
from headway.training.checkpoint.reader import CheckpointContents, CheckpointReader, LoadedCheckpoint
from headway.training.checkpoint.serialization import CheckpointDamaged
from headway.training.distributed.process_group import ProcessGroup


def read_together(reader: CheckpointReader, step: int, group: ProcessGroup) -> LoadedCheckpoint:
    """Load a checkpoint on every rank. Raises CheckpointDamaged on all ranks if any of its files is damaged."""
    if group.world.size == 1:
        return reader.load(step)
    contents = _share_contents(reader, step, group)
    owners = assign_files(contents.files, group.world.size)
    mine = {key: record for key, record in contents.files.items() if owners[key] == group.world.rank}
    bodies: dict[str, bytearray] = {}
    damage: list[str] = []

    def read() -> None:
        try:
            for key, record in mine.items():
                bodies[key] = reader.read_file(key, record)
        except CheckpointDamaged as error:
            damage.append(str(error))

    problem = group.run_together(read)
    found = [text for text in group.all_gather_text("".join(damage)) if text]
    if problem is not None:
        raise problem
    if found:
        raise CheckpointDamaged("; ".join(found))
    for key, record in contents.files.items():
        bodies[key] = group.broadcast_bytes(bodies.get(key), int(record["bytes"]), owners[key])
    return contents.assemble(bodies)


def _share_contents(reader: CheckpointReader, step: int, group: ProcessGroup) -> CheckpointContents:
    """Read the manifest and the state on rank 0, and send them to the others."""
    message: dict[str, Any] = {}

    def read() -> None:
        if group.world.rank:
            return
        try:
            found = reader.read_contents(step)
            message.update(manifest=found.manifest, state=found.state)
        except CheckpointDamaged as error:
            message["damage"] = str(error)

    problem: HeadwayError | None = group.run_together(read)
    if problem is not None:
        raise problem
    message = json.loads(group.broadcast_text(json.dumps(message)))
    if "damage" in message:
        raise CheckpointDamaged(message["damage"])
    return CheckpointContents(message["manifest"], message["state"])


def assign_files(files: Mapping[str, Mapping[str, Any]], ranks: int) -> dict[str, int]:
    """Assign each file to the rank that reads it, balanced by size; the same on every rank."""
    load, owners = [0] * ranks, {}
    ordered: Sequence[str] = sorted(files, key=lambda key: (-int(files[key]["bytes"]), key))
    for key in ordered:
        owners[key] = load.index(min(load))
        load[owners[key]] += int(files[key]["bytes"])
    return owners
