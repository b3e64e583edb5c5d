"""Everything that reads bytes of strangers, by name: good samples, and what reads them.

A reader may return, or raise a HeadwayError (or what its docstring names). Anything else, a crash above all, is a bug.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import HeadwayError
from headway.storage import open_store

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Subject:
    samples: list[bytes]
    read: Read
    may_raise: tuple[type[Exception], ...] = (HeadwayError,)

    def meets(self, body: bytes) -> None:
        """Returns unless the reader does what no reader may."""
        try:
            self.read(body)
        except self.may_raise:
            pass


def job_files() -> Subject:
    from headway.spec import loads

    text = b"name: x\nscript: train.py\nseed: 7\nretries: 3\nconfig: {lr: 1e-3, deep: [1, {a: b}]}\nbudget: 3h\n"
    return Subject(
        [text, b'{"name": "x", "script": "t.py", "args": ["--a", "1"]}'], lambda b: loads(b.decode("utf-8", "replace"))
    )


def plans() -> Subject:
    from headway.core.plan import Plan

    code = {"sha256": "0" * 64, "files": 1, "bytes": 2, "biggest": [["a", 2]], "wheel": "w", "wheel_sha256": "1" * 64}
    limits = {"budget_s": 1.0, "max_wait_s": None, "grace_s": 30.0, "second": "none"}
    body = {"schema": 1, "headway": "1", "job": {"name": "x"}, "target": "local", "kind": "local", "options": {}}
    body |= {"code": code, "data": {}, "nodes": 1, "processes": 1, "limits": limits, "environment": {}, "price": {}}
    return Subject([json.dumps({**body, "notes": ["n"], "requests": []}).encode()], Plan.from_json)


def data_manifests() -> Subject:
    from headway.data.dataset.manifest import Column, Manifest, OtherFile, ShardFile

    shard = ShardFile(key="train/0.arrow", rows=2, bytes=10, sha256="0" * 64)
    columns = (
        Column(name="picture", kind="picture", encoding="raw", height=4, width=4),
        Column(name="c", kind="texts"),
    )
    file = OtherFile(key="tokenizer.json", bytes=1, sha256="1" * 64)
    made = Manifest(name="d", task="captions", columns=columns, splits={"train": (shard,)}, files=(file,))
    return Subject([made.to_json().encode()], Manifest.from_json)


def bundles() -> Subject:
    from headway.bundle.format import Record

    file = {"sha256": "0" * 64, "bytes": 3}
    body = {"format": 1, "headway": "1", "recipe": "captioning", "name": "m", "metrics": {"a": 1.0}}
    files = {"model.safetensors": file, "config.json": {**file, "at": "files/0.json"}}
    return Subject([json.dumps({**body, "files": files}).encode()], lambda b: Record.read(b, "bundle"))


def tensors() -> Subject:
    """A safetensors file, and all its values looked at."""
    import torch
    from safetensors.torch import save

    from headway.training.checkpoint.staging import parse_safetensors

    sample = save({"a": torch.ones(3, 2), "b": torch.zeros(5, dtype=torch.int64), "c": torch.ones(1).half()})
    return Subject([sample], lambda b: [t.sum() for t in parse_safetensors(bytearray(b)).values()])


def foreign_weights() -> Subject:
    import torch

    from headway.training.checkpoint.init_weights import load_torch_file

    samples = []
    for zipped in (True, False):
        to = io.BytesIO()
        torch.save({"state_dict": {"w": torch.ones(2)}}, to, _use_new_zipfile_serialization=zipped)
        samples.append(to.getvalue())
    return Subject(samples, lambda b: load_torch_file(b, "weights.pth"))


def checkpoints() -> Subject:
    """The record of a checkpoint's state, and its manifest in a folder."""
    import torch

    from headway.training.checkpoint.serialization import decode_record, encode_record, flatten, unflatten

    state = {"a": torch.ones(2), "t": (1, 2.5), "i": {3: b"x"}, "f": float("nan"), "d": torch.float32, "s": "text"}
    tree, tensors_ = flatten(state)
    return Subject([encode_record(tree)], lambda b: unflatten(decode_record(b, "state.json"), tensors_))


def checkpoint_manifests() -> Subject:
    """Whatever lies where a manifest should, sealed as ours or not: damage has a name, and nothing is waited for."""
    from headway.training.checkpoint.reader import CheckpointReader
    from headway.training.checkpoint.serialization import with_checksum

    file = {"name": "a0001-state.json", "bytes": 1, "sha256": "0" * 64}
    record = {"step": 4, "epoch": 0, "names": ["best"], "score": 1.0, "forever": False, "attempt": 1}
    record |= {"files": {"a0001-r0.safetensors": file}, "state": file}
    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    store = open_store(folder.name)

    def read(body: bytes) -> None:
        assert folder
        for each in (body, _sealed(body, with_checksum)):
            store.write("checkpoints/00000004/manifest.json", each)
            CheckpointReader(store, try_for_s=0.0, stale_for_s=0.0, sleep=lambda _: None).load_newest([])

    return Subject([json.dumps(record).encode(), with_checksum(record)], read)


def _sealed(body: bytes, seal: Callable[[dict[str, Any]], bytes]) -> bytes:
    try:
        value = json.loads(body)
        return seal(value) if isinstance(value, dict) else body
    except (ValueError, RecursionError):
        return body


def shards() -> Subject:
    """Every cell of every column. A cell beyond its column is an error as in any list: hashes vouch for the rest."""
    import numpy as np

    from headway.data.dataset.manifest import Column
    from headway.data.dataset.shards import Shard, shard_bytes

    columns = [
        Column(name="picture", kind="picture", encoding="raw", height=2, width=2),
        *(Column(name="jpeg", kind="picture", encoding="jpeg"), Column(name="texts", kind="texts")),
        *(Column(name="label", kind="integer"), Column(name="ids", kind="integers"), Column(name="text", kind="text")),
    ]
    values = {"picture": np.zeros((2, 12), np.uint8), "jpeg": [b"abc", b"d"], "texts": [["a", "b"], []]}
    values |= {"label": [1, 2], "ids": [[1], [2, 3]], "text": ["é", ""]}
    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    path = Path(folder.name) / "shard.arrow"

    def read(body: bytes) -> None:
        assert folder
        path.unlink(missing_ok=True)  # never changed in place: an earlier map of it may still be read
        path.write_bytes(body)
        shard = Shard(path, columns)
        for column in columns:
            cells = shard.cells(column.name)
            for row in range(min(len(cells), 50)):
                cells[row]

    within = (HeadwayError, IndexError, UnicodeDecodeError)
    return Subject([bytes(shard_bytes(columns, values).body)], read, within)


def _pictures() -> list[bytes]:
    import numpy as np
    from PIL import Image

    pixels = np.random.Generator(np.random.Philox(key=3)).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    samples = []
    for kind, mode in (("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("WEBP", "RGB"),
                       ("BMP", "RGB"), ("TIFF", "RGB"), ("TIFF", "L")):  # fmt: skip
        to = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).convert(mode).save(to, kind, **({"exif": exif} if kind in ("JPEG", "WEBP") else {}))
        samples.append(to.getvalue())
    samples.append(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    return samples


def pictures_of_data() -> Subject:
    from headway.data.prepare.images import BadPicture, Shape, decode

    return Subject(_pictures(), lambda b: decode(b, Shape(16), max_pixels=1_000_000), (BadPicture,))


def pictures_of_clients() -> Subject:
    from headway.artifacts.predictor import PredictionError
    from headway.serving.inputs import decode_picture

    return Subject(_pictures(), lambda b: decode_picture(b, pixels=1_000_000, at="/x"), (PredictionError,))


def pictures_by_hand() -> Subject:
    from headway.artifacts.media import open_picture

    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    path = Path(folder.name) / "picture"

    def read(body: bytes) -> None:
        assert folder
        path.write_bytes(body)
        open_picture(str(path))

    return Subject(_pictures(), read)


def archives() -> Subject:
    import tarfile
    import zipfile

    from headway.data.download.archive import Limits, unpack

    tar, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as made:
        member = tarfile.TarInfo("a/b.txt")
        member.size = 3
        made.addfile(member, io.BytesIO(b"abc"))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a/b.txt", "abc" * 50)
        zipped.writestr("c", "d")
    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    root = Path(folder.name)

    def read(body: bytes) -> None:
        import shutil

        assert folder
        for name in ("x.tar.gz", "x.zip", "x"):
            (root / name).write_bytes(body)
            shutil.rmtree(root / "out", ignore_errors=True)
            try:
                unpack(root / name, root / "out", Limits(free=100_000, ratio=5, files=100))
            except HeadwayError:
                pass
            strangers = {path.name for path in root.iterdir()} - {"x.tar.gz", "x.zip", "x", "out"}
            assert not strangers, f"it wrote {strangers}"

    return Subject([tar.getvalue(), packed.getvalue()], read)


def cluster_specs() -> Subject:
    """Vertex AI's variable; the other launchers' too, with the same text in each of theirs."""
    from headway.supervisor.topology import other_launcher

    pools = {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"], "workerpool1": ["a:2222", "b:2222"]}
    spec = {"cluster": pools, "environment": "cloud", "task": {"type": "workerpool1", "index": 1}, "job": "{}"}

    def read(body: bytes) -> None:
        text = body.decode("utf-8", "replace").replace("\0", "")
        for name in ("CLUSTER_SPEC", "PET_NNODES", "SLURM_NODELIST"):
            env = {name: text, "SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "MASTER_ADDR": "m"}
            try:
                other_launcher(env, 2)
            except HeadwayError:
                pass

    return Subject([json.dumps(spec).encode(), b"2:2", b"node[01-03,07],x"], read)


def segments() -> Subject:
    """Lines of logs, events and metrics of a run folder that anybody may have written."""
    from headway.rundir.layout import RunFolder

    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    store = open_store(folder.name)
    lines = b'{"step": 1, "loss": 2.5}\n{"resume_step": 0, "resume_attempt": 1}\n{"step": 1, "loss": 2.0}\n'
    events = b'{"kind": "attempt", "host": "h"}\n{"kind": "ended", "state": "finished", "exit_code": 0}\n'
    logs = b"2026-01-01T00:00:00.000Z hello\n2026-01-01T00:00:01.000Z \xff\n"

    def read(body: bytes) -> None:
        assert folder
        for key in ("metrics/a0001-0000001.jsonl", "events/a0001-0000001.jsonl", "logs/a0001-r0-0000001.log"):
            store.write(key, body)
        run = RunFolder(store)
        list(run.log_lines())
        for look in (run.metrics, run.ended):
            try:
                look()
            except HeadwayError:
                pass

    return Subject([lines, events, logs], read)


def leases() -> Subject:
    from headway.rundir import lease

    folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
    store = open_store(folder.name)
    record = {"attempt": 3, "holder": "h", "host": "x", "boot": "b", "pid": 7, "started": "1", "beat": 4}

    def read(body: bytes) -> None:
        assert folder
        store.write(lease.KEY, body)
        found, _ = lease.read(store)
        assert found is None or isinstance(found.attempt, int)

    return Subject([json.dumps(record).encode()], read)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(archives, bundles, checkpoint_manifests, checkpoints, cluster_specs, data_manifests, foreign_weights),
        *(job_files, leases, pictures_by_hand, pictures_of_clients, pictures_of_data, plans, segments, shards, tensors),
    )
}
