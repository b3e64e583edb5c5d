"""What must hold for every value, tried on many: plans, checkpoints, batches, mixtures and histories."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import Code, Limits, Plan
from headway.core.types import Request
from headway.rundir.layout import RunFolder, SegmentWriter
from headway.spec.model import Cadence, Checkpoint
from headway.storage.memory import MemoryStore

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORD = st.dictionaries(st.text(max_size=5), JSON, max_size=4)
NAMES = (f"fuzz-{number}" for number in itertools.count())  # stores in memory are known by their names
SECONDS = st.none() | st.floats(0, 1e9)


@given(
    *(RECORD, st.text(max_size=20), st.lists(st.tuples(st.text(), st.integers(0, 2**60)), max_size=4)),
    *(SECONDS, st.lists(RECORD, max_size=3), st.integers(1, 10_000)),
)
def test_every_plan_reads_back_as_itself(
    job: dict[str, Any],
    name: str,
    biggest: list[tuple[str, int]],
    budget: float | None,
    bodies: list[Any],
    nodes: int,
) -> None:
    code = Code(sha256="0" * 64, files=3, bytes=9, biggest=tuple(biggest), wheel=name, wheel_sha256="1" * 64)
    made = Plan(
        headway="1",
        job={**job, "name": name},
        target=name,
        kind="local",
        options=job,
        code=code,
        data={name: "unresolved"},
        nodes=nodes,
        processes=2,
        limits=Limits(budget_s=budget, max_wait_s=budget, grace_s=30.0, second=name),
        environment={},
        price={"usd_per_hour": budget},
        notes=(name,),
        requests=tuple(Request(name=name, body=body) for body in bodies),
    )
    again = Plan.from_json(made.to_json())
    assert (again, again.hash) == (made, made.hash)
    assert again.to_json() == made.to_json()


# -- checkpoints ------------------------------------------------------------------------------------------------------

KEYS = st.text(max_size=6) | st.sampled_from(["$tensor", "$items", "a/b"])
NUMBERS = st.floats(allow_nan=False) | st.integers() | st.booleans()
STATE = st.recursive(
    st.none() | NUMBERS | st.text(max_size=6) | st.binary(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), STATE, max_size=4))
def test_every_plain_state_survives_a_checkpoint(state: dict[str, Any]) -> None:
    from headway.training.checkpoint.serialization import decode_record, encode_record, flatten, unflatten

    tree, tensors = flatten(state)
    assert not tensors
    assert unflatten(decode_record(encode_record({"state": tree}), "x"), {}) == {"state": state}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["float32", "float64", "int64", "bool", "float16", "uint8", "bfloat16"]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=5,
    ),
    st.integers(1, 5),
)
def test_every_set_of_tensors_survives_being_dealt_out_and_written(shapes: dict[str, Any], ranks: int) -> None:
    from headway.training.checkpoint.staging import Layout, StagingBuffer, parse_safetensors, partition_tensors

    dice = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randint(0, 2, shape, generator=dice).to(getattr(torch, kind))
        for name, (kind, shape) in shapes.items()
    }
    shares = partition_tensors(tensors, tensors, ranks)
    assert Counter(name for share in shares for name in share) == Counter(list(tensors))
    found: dict[str, Any] = {}
    for share in shares:
        mine = {name: tensors[name] for name in share}
        image = StagingBuffer(Layout(mine), mine)
        image.fill(mine)
        found |= parse_safetensors(bytearray(image.bytes))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@given(RECORD, st.integers(0, 10_000), st.integers(0, 7))
def test_a_sealed_record_with_any_bit_changed_is_no_record(record: dict[str, Any], place: int, bit: int) -> None:
    from headway.training.checkpoint.serialization import CheckpointDamaged, verify_checksum, with_checksum

    record.pop("checksum", None)
    body = bytearray(with_checksum(record))
    assert verify_checksum(bytes(body), "x") == record
    body[place % len(body)] ^= 1 << bit
    try:
        assert verify_checksum(bytes(body), "x") == record  # white space, or the same number in other digits
    except CheckpointDamaged:
        pass


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.floats(0, 1), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_retention_keeps_the_last_the_best_and_the_named_and_nothing_else(
    commits: list[tuple[int, float | None, bool]], last: int, best: int
) -> None:
    from headway.training.checkpoint.index import CheckpointEntry, CheckpointIndex, read_index

    store = MemoryStore(f"memory://{next(NAMES)}")
    catalogue = CheckpointIndex(store, Checkpoint(every=Cadence(steps=1), keep_last=last, keep_best=best))
    step, written, names = 0, list[CheckpointEntry](), dict[str, int]()
    for stride, score, named in commits:
        step += stride
        new = CheckpointEntry(step, 0, ("best",) if named else (), score)
        store.write(f"checkpoints/{step:08d}/manifest.json", b"{}")
        catalogue.record(new)
        catalogue.prune()
        written.append(new)
        if named:
            names["best"] = step
    steps = [kept.step for kept in written]
    assert set(steps[-last:]) <= set(catalogue.steps)
    assert set(names.values()) <= set(catalogue.steps)
    scored = sum(score is not None for _, score, _ in commits)
    assert len(catalogue.steps) <= last + min(best, scored) + len(names)
    recorded = read_index(store)
    assert recorded is not None
    assert [one.step for one in recorded] == catalogue.steps
    assert {entry.key.split("/")[1] for entry in store.list("checkpoints/") if entry.key.count("/") == 2} == {
        f"{kept:08d}" for kept in catalogue.steps
    }


# -- batches and mixtures ---------------------------------------------------------------------------------------------


@given(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 9), st.booleans()
)
def test_any_number_of_ranks_sees_the_same_batches_and_each_item_once(
    items: int, batch: int, ranks: int, seed: int, epoch: int, shuffle: bool
) -> None:
    from headway.training import Loader

    loader = Loader(range(items), batch, shuffle=shuffle, seed=seed)
    seen: list[int] = []
    for step in range(len(loader)):
        whole = loader.indices(epoch, step)
        parts = [loader.indices(epoch, step, part, ranks) for part in range(ranks)]
        assert [index for part in parts for index in part] == whole
        seen += whole
    assert sorted(seen) == list(range(items))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 20)), min_size=1, max_size=5),
    st.integers(1, 150),
    st.integers(0, 2**40),
    st.integers(1, 6),
)
def test_over_any_number_of_epochs_no_row_of_a_pool_is_two_rounds_ahead_of_another(
    pools: list[tuple[int, float]], length: int, seed: int, epochs: int
) -> None:
    from headway.data.loading.sampler import SampleGroup, SampleOrder, quotas

    starts = np.cumsum([0, *(size for size, _ in pools)])
    order = SampleOrder(
        [SampleGroup(range(int(a), int(a) + n), s) for a, (n, s) in zip(starts, pools, strict=False)], length
    )
    everywhere = np.arange(length)
    epochs_rows = [order.rows_at(seed, epoch, everywhere) for epoch in range(epochs)]
    counts = Counter(int(row) for rows in epochs_rows for row in rows)
    wanted = quotas([share for _, share in pools], length)
    for start, (size, _), quota in zip(starts, pools, wanted, strict=False):
        of_pool = [counts[row] for row in range(int(start), int(start) + size)]
        assert sum(of_pool) == quota * epochs or len(pools) == 1
        assert max(of_pool) - min(of_pool) <= 1
    some = everywhere[:: max(1, length // 7)]
    assert np.array_equal(order.rows_at(seed, 0, some), epochs_rows[0][some])


# -- histories --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(1, 4)), min_size=1, max_size=6))
def test_a_history_has_each_step_once_however_often_it_was_broken_off(attempts: list[tuple[int, int, int]]) -> None:
    """Each attempt goes on from a step that some earlier one had reached, trains on, and is killed."""
    store = MemoryStore(f"memory://{next(NAMES)}")
    reached: dict[int, int] = {0: 0}
    value: dict[tuple[int, int], str] = {}  # (attempt, step) -> which attempt made it
    for attempt, (wish, steps, a_segment) in enumerate(attempts, 1):
        before = wish % attempt
        start = min(wish, reached[before])
        writer = SegmentWriter(store, "metrics", attempt)
        if before:
            writer.add(json.dumps({"resume_step": start, "resume_attempt": before}))
        else:
            writer.add(json.dumps({"resume_step": 0, "resume_attempt": -1}))
            start = 0
        value.update({(attempt, step): value[before, step] for step in range(1, start + 1)})
        for step in range(start + 1, start + steps + 1):
            writer.add(json.dumps({"step": step, "by": attempt}))
            value[attempt, step] = str(attempt)
            if step % a_segment == 0:
                writer.flush()
        writer.flush()
        reached[attempt] = start + steps
    last = len(attempts)
    history = [(record["step"], str(record["by"])) for record in RunFolder(store).metrics()]
    assert history == [(step, value[last, step]) for step in range(1, reached[last] + 1)]
