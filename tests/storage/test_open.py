"""From URLs to stores, without loading what is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.storage import join, local_path, open_store
from headway.storage.local import FolderStore
from headway.storage.memory import MemoryStore
from headway.storage.object_store import ObjectStore


@pytest.mark.parametrize(
    ("url", "parts", "joined"),
    [
        ("gs://bucket/runs", ("r1", "export"), "gs://bucket/runs/r1/export"),
        ("gs://bucket/runs/", ("/r1/",), "gs://bucket/runs/r1"),
        ("gs://bucket", ("a/b", "c"), "gs://bucket/a/b/c"),
        ("/data/runs", ("r1",), "/data/runs/r1"),
        ("/", ("r1",), "/r1"),
        ("/", (), "/"),
        ("runs/", (), "runs"),
        ("memory://", ("x",), "memory://x"),
        ("memory://x", ("y", "", "."), "memory://x/y"),
        ("az://c@account/a", ("b",), "az://c@account/a/b"),
    ],
)
def test_joining_goes_downwards(url: str, parts: tuple[str, ...], joined: str) -> None:
    assert join(url, *parts) == joined


def test_joining_never_goes_upwards() -> None:
    with pytest.raises(BadInput, match="is outside"):
        join("gs://bucket/runs", "a/../../other")


def test_a_path_is_local_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert local_path("runs") == tmp_path / "runs"
    assert local_path("./runs/../runs") == tmp_path / "runs"
    assert local_path("~/runs") == Path("/home/somebody/runs")
    assert local_path("file:///data/with%20space") == Path("/data/with space")
    assert local_path("file://localhost/data") == Path("/data")
    assert open_store("runs").url == str(tmp_path / "runs")


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3://bucket", "az://c@a/x", "memory://x"])
def test_other_stores_are_no_local_folder(url: str) -> None:
    assert local_path(url) is None


def test_each_url_opens_its_store(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path)), FolderStore)
    assert isinstance(open_store(f"file://{tmp_path}"), FolderStore)
    assert isinstance(open_store("memory://x"), MemoryStore)
    for url in ("gs://bucket/a", "s3://bucket/a", "az://container@account/a", "GS://bucket/a"):
        assert isinstance(open_store(url), ObjectStore)


def test_a_file_url_is_the_same_folder_as_its_path(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/with%20space").write("k", b"x")
    assert open_store(str(tmp_path / "with space")).read("k") == b"x"


def test_memory_is_shared_by_name_and_only_by_name() -> None:
    open_store("memory://shared/a").write("k", b"x")
    assert open_store("memory://shared").read("a/k") == b"x"
    assert list(open_store("memory://another").list()) == []


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("", "give a folder"),
        ("  ", "give a folder"),
        ("a\0b", "give a folder"),
        ("gcs://bucket/x", "write gs://"),
        ("s3a://bucket/x", "write s3://"),
        ("abfss://c@a.dfs.core.windows.net/x", "write az://"),
        ("https://example.com/x", "use a folder, gs://"),
        ("gs:///x", "gs://bucket/folder"),
        ("s3://", "s3://bucket/folder"),
        ("az://container/x", "export AZURE_STORAGE_ACCOUNT=NAME"),
        ("az://@account/x", "az://container@account/folder"),
        ("file://other-host/data", "three slashes"),
    ],
)
def test_a_url_that_is_no_store_says_what_to_write(url: str, fix: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(url)
    assert fix in caught.value.problem.fix


def test_importing_and_using_a_folder_loads_no_client_of_any_cloud(tmp_path: Path) -> None:
    script = (
        "import sys; from headway.storage import open_store;"
        f"s = open_store({str(tmp_path)!r}); s.write('k', b'x'); list(s.list());"
        "heavy = {'obstore', 'boto3', 'botocore', 'google.auth', 'google.cloud.storage', 'azure.core',"
        "'requests', 'concurrent.futures',"
        "'numpy', 'torch', 'asyncio', 'ssl', 'http.client'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
