"""The contract, held by every store: two here, three clouds over real or strict servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.storage import Store, open_store
from headway.testing.stores import StoreContract
from tests.servers.gcs import GcsServer


class TestFolder(StoreContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: open_store(str(tmp_path / "the store" / "root"))


class TestMemory(StoreContract):
    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        name = uuid.uuid4().hex
        return lambda: open_store(f"memory://{name}/folder")


class TestS3(StoreContract):
    """moto, with boto3's chain for the credentials."""

    @pytest.fixture
    def reopen(self, moto_url: str, folder_name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
        make_s3_bucket(moto_url)
        return lambda: open_store(f"s3://bucket/{folder_name}")


@pytest.mark.slow
class TestAzure(StoreContract):
    """Azurite, with its connection string."""

    @pytest.fixture
    def reopen(self, azurite_url: str, folder_name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_connection(azurite_url))
        make_azure_container(azurite_url)
        return lambda: open_store(f"az://bucket/{folder_name}")


class TestGoogle(StoreContract):
    """The strict server, as an emulator; it lists seven objects a page."""

    @pytest.fixture
    def reopen(self, shared_gcs: GcsServer, folder_name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
        shared_gcs.tokens.add("emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", shared_gcs.url)
        return lambda: open_store(f"gs://bucket/{folder_name}")


def make_s3_bucket(url: str) -> None:
    boto3 = pytest.importorskip("boto3")
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="bucket")


def azurite_connection(url: str) -> str:
    from headway.storage.azure import _EMULATOR

    account, key = _EMULATOR["AccountName"], _EMULATOR["AccountKey"]
    return f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={url}/{account};"


def make_azure_container(url: str) -> None:
    blob = pytest.importorskip("azure.storage.blob", reason="azure-storage-blob is not installed")
    from azure.core.exceptions import ResourceExistsError

    try:
        blob.BlobServiceClient.from_connection_string(azurite_connection(url)).create_container("bucket")
    except ResourceExistsError:
        pass
