"""Shared runs are refused where a store ignores the conditions of a write."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import Denied, StoreError
from headway.storage import ABSENT, open_store, require_conditional_put
from headway.storage.memory import MemoryStore
from tests.servers import processes
from tests.servers.faults import FaultyStore
from tests.storage.conftest import QUICK


class Careless(MemoryStore):
    """Ignores the conditions named in `ignored`."""

    def __init__(self, ignored: str) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}")
        self.ignored = ignored
        self.writes = 0

    def write(self, key: str, body: Any, *, when: str | None = None) -> str:
        self.writes += 1
        if (when == ABSENT and self.ignored == "create") or (when and self.ignored == "update"):
            when = None
        return super().write(key, body, when=when)


@pytest.mark.parametrize("ignored", ["create", "update"])
def test_a_store_that_ignores_conditions_is_refused_and_left_clean(ignored: str) -> None:
    store = Careless(ignored)
    with pytest.raises(StoreError, match="ignores the conditions of a write"):
        require_conditional_put(store)
    assert list(store.list()) == []


@pytest.mark.slow
def test_s3rver_ignores_conditions_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "S3RVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
    with processes.s3rver() as url:
        store = open_store("s3://bucket/runs", endpoint=url, retry=QUICK)
        with pytest.raises(StoreError, match="ignores the conditions of a write"):
            require_conditional_put(store)
        assert list(store.list()) == []


def test_a_store_is_asked_once() -> None:
    store = Careless("nothing")
    require_conditional_put(store)
    asked = store.writes
    require_conditional_put(store)
    assert store.writes == asked


def test_a_store_that_may_not_be_written_is_denied_and_not_called_careless(tmp_path: Path) -> None:
    store = FaultyStore(open_store(str(tmp_path)), fail_writes={1}, error=Denied)
    with pytest.raises(Denied):
        require_conditional_put(store)
