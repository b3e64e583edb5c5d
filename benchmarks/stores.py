"""Object stores through Headway, the cloud's own client library and fsspec, each against one server on this machine.

S3 is moto, Azure Blob is Microsoft's Azurite, Google's is the strict test double: the same server for all, and slower
than any client. The limit is plain HTTP to it, without retries or checksums. Every client is a separate process; they
take turns to write, read and list the same objects, large ones as their documentation recommends. s3fs and adlfs are in
separate environments; gcsfs ends lines in a way that the double rejects, and is not compared. A remote server would
hide what is measured here: the work of the client.

On a local server, one request is faster than several parallel parts, which are more work for the server. The advantage
of parts is shown last: the same S3, behind a proxy that limits each connection to 25 MB per second, as a cloud does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from benchmarks.harness import Absent, environment, interleave, note

REPEATS = 5
JOBS = ("40 small writes", "40 small reads", "a write of 32 MB", "a read of 32 MB", "a listing of 40")
LARGE = (2, 3)  # of these, the jobs with one large object
ROOT = Path(__file__).resolve().parents[1]
A_CONNECTION = 25_000_000  # bytes a second, either way, of a server that is far away
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # published

# Every client: `write`, `read` and `listing`; it does the job whose number it is sent.
BEFORE = """
import io, os, sys, uuid
root, url = uuid.uuid4().hex, os.environ["BENCH_URL"]
"""
SERVE = """
small, large = b"y" * 1024, os.urandom(1 << 20) * 32
jobs = [
    lambda: [write(f"{root}/small/{n}", small) for n in range(40)],
    lambda: [read(f"{root}/small/{n}") for n in range(40)],
    lambda: write(f"{root}/large", large),
    lambda: read(f"{root}/large"),
    lambda: listing(f"{root}/small/"),
]
for line in sys.stdin:
    found = jobs[int(line)]()
    assert int(line) != 3 or len(found) == len(large)
    print("done", flush=True)
"""
PLAIN = """
import http.client, json
told = json.loads(os.environ["BENCH_PLAIN"])
connection = http.client.HTTPConnection(url.removeprefix("http://"))
def ask(method, path, body=None, query=""):
    query = "&".join(part for part in (query, told["query"]) if part)
    connection.request(method, told["root"] + path + (query and "?" + query), body, told["headers"])
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status < 300, (answer.status, method, path, said)
    return said
write = lambda key, body: ask("PUT", f"/{key}", body)
read = lambda key: ask("GET", f"/{key}")
listing = lambda prefix: ask("GET", "", query=f"{told['listing']}&prefix={prefix}")
"""
HEADWAY = """
from headway.storage import open_store
store = open_store(os.environ["BENCH_STORE"])
write, read, listing = store.write, store.read, lambda prefix: list(store.list(prefix))
"""
BOTO3 = """
import boto3
client = boto3.client("s3", endpoint_url=url)
def write(key, body):
    if len(body) > 1 << 20:
        client.upload_fileobj(io.BytesIO(body), "bench", key)
    else:
        client.put_object(Bucket="bench", Key=key, Body=body)
def read(key):
    if not key.endswith("large"):
        return client.get_object(Bucket="bench", Key=key)["Body"].read()
    to = io.BytesIO()
    client.download_fileobj("bench", key, to)
    return to.getvalue()
listing = lambda prefix: client.list_objects_v2(Bucket="bench", Prefix=prefix)
"""
GOOGLE = """
from google.cloud import storage
from google.oauth2.credentials import Credentials
client = storage.Client(project="p", credentials=Credentials("emulator"), client_options={"api_endpoint": url})
bucket = client.bucket("bench")
write = lambda key, body: bucket.blob(key).upload_from_string(body)
read = lambda key: bucket.blob(key).download_as_bytes()
listing = lambda prefix: list(client.list_blobs("bench", prefix=prefix))
"""
AZURE = """
from azure.storage.blob import BlobServiceClient
service = BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"])
container = service.get_container_client("bench")
write = lambda key, body: container.upload_blob(key, body, overwrite=True, max_concurrency=4)
read = lambda key: container.download_blob(key, max_concurrency=4).readall()
listing = lambda prefix: list(container.list_blobs(name_starts_with=prefix))
"""
FSSPEC = """
write = lambda key, body: files.pipe_file(f"bench/{key}", body)
read = lambda key: files.cat_file(f"bench/{key}")
def listing(prefix):
    files.invalidate_cache()
    return files.ls(f"bench/{prefix}")
"""
S3FS = "import s3fs\nfiles = s3fs.S3FileSystem(endpoint_url=url, use_listings_cache=False)\n" + FSSPEC
GCSFS = "import gcsfs\nfiles = gcsfs.GCSFileSystem(project='p', token=TOKEN, endpoint_url=url)\n" + FSSPEC
GCSFS = "from google.oauth2.credentials import Credentials\n" + GCSFS.replace("TOKEN", "Credentials('emulator')")
ADLFS = (
    "import adlfs\nfiles = adlfs.AzureBlobFileSystem("
    "connection_string=os.environ['AZURE_STORAGE_CONNECTION_STRING'])\n" + FSSPEC
)
PROXY = """
import asyncio, sys, time
host, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
async def carry(reader, writer):
    began, carried = time.monotonic(), 0
    try:
        while block := await reader.read(1 << 16):
            now = time.monotonic()
            began = max(began, now - carried / rate - 0.02)  # what was not used a moment ago cannot be used now
            carried += len(block)
            await asyncio.sleep(max(0.0, began + carried / rate - now))
            writer.write(block)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
async def meet(reader, writer):
    there = await asyncio.open_connection(host, port)
    await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
async def main():
    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    print("http://127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One server, how it is reached, and who speaks to it beside Headway and plain HTTP."""

    name: str
    url: str
    env: Mapping[str, str]
    store: str
    plain: Mapping[str, Any]  # root, query, listing and headers of a plain request
    library: tuple[str, str]  # its name and script
    fsspec: tuple[str, str]
    jobs: tuple[int, ...] = tuple(range(len(JOBS)))
    limit: str = "plain HTTP (the limit)"


def main() -> int:
    for opened in (amazon, azure, google, far_away):
        try:
            with opened() as cloud:
                compare(cloud)
        except Absent as why:
            print(f"{opened.__name__} takes no part: {why}\n")
    return 0


def compare(cloud: Cloud) -> None:
    from json import dumps

    told = {**os.environ, **cloud.env, "BENCH_URL": cloud.url, "BENCH_STORE": cloud.store}
    told |= {"BENCH_PLAIN": dumps(dict(cloud.plain)), "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        clients: dict[str, Callable[[int], object]] = {}
        for name, script in ((cloud.limit, PLAIN), ("Headway", HEADWAY), cloud.library):
            clients[name] = stack.enter_context(client(sys.executable, script, told))
        package, script = cloud.fsspec
        try:
            python = environment(f"stores/{package}", package)
            clients[f"fsspec ({package})"] = stack.enter_context(client(str(python), script, told))
            clients[f"fsspec ({package})"](0)
        except (Absent, RuntimeError) as why:
            clients.pop(f"fsspec ({package})", None)
            print(f"{package} takes no part: {why}\n")
        for job in cloud.jobs:
            table(f"{cloud.name}: {JOBS[job]}", job, clients)


def table(title: str, number: int, clients: dict[str, Callable[[int], object]]) -> None:
    rows = interleave({name: lambda run=run: run(number) for name, run in clients.items()}, REPEATS)  # type: ignore[misc]
    floor = rows[0].median
    print(f"{title}\n\n| | ms | ± | × the limit |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row.name} | {row.median * 1e3:.1f} | {row.spread:.0%} | {row.median / floor:.2f} |")
        note(
            title, row.name, row.median * 1e3, "ms", limit=rows[0].name.removesuffix(" (the limit)"), floor=floor * 1e3
        )
    print(flush=True)


@contextmanager
def client(python: str, script: str, env: Mapping[str, str]) -> Iterator[Callable[[int], None]]:
    command, pipe = [python, "-c", BEFORE + script + SERVE], subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)

    def run(number: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{number}\n")
        child.stdin.flush()
        if child.stdout.readline() != "done\n":
            assert child.stderr is not None
            raise RuntimeError((child.stderr.read().strip().splitlines() or ["it ended"])[-1][:200])

    try:
        yield run
    finally:
        child.kill()
        child.communicate()


@contextmanager
def amazon() -> Iterator[Cloud]:
    from tests.chaos.scenarios import bucket
    from tests.servers import processes

    with processes.moto() as url:
        env = {**processes.MOTO_SETTINGS, "AWS_ENDPOINT_URL": url, **bucket(url, "bench").env}
        who = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        headers = {"Authorization": who}  # moto reads who it is, and does not check the signature
        plain = {"root": "/bench", "query": "", "listing": "list-type=2", "headers": headers}
        yield Cloud(
            name="S3",
            url=url,
            env=env,
            store="s3://bench",
            plain=plain,
            library=("boto3", BOTO3),
            fsspec=("s3fs", S3FS),
        )


@contextmanager
def far_away() -> Iterator[Cloud]:
    """The same S3, a connection to which carries only so much."""
    with amazon() as near:
        host, _, port = near.url.removeprefix("http://").partition(":")
        with printing(["-c", PROXY, host, port, str(A_CONNECTION)]) as url:
            env = {**near.env, "AWS_ENDPOINT_URL": url}
            yield replace(near, name="S3 from afar", url=url, env=env, jobs=LARGE, limit="plain HTTP, one connection")


@contextmanager
def azure() -> Iterator[Cloud]:
    from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

    from tests.servers import processes

    with server(processes.azurite) as url:
        given = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT};"
        BlobServiceClient.from_connection_string(given).create_container("bench")
        signed = generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(read=True, write=True, list=True, create=True, add=True),
            datetime.now(timezone.utc) + timedelta(hours=6),
        )
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2023-11-03"}
        listing = "restype=container&comp=list"
        plain = {"root": f"/{ACCOUNT}/bench", "query": signed, "listing": listing, "headers": headers}
        env = {"AZURE_STORAGE_CONNECTION_STRING": given}
        library = ("azure-storage-blob", AZURE)
        yield Cloud(
            name="Azure", url=url, env=env, store="az://bench", plain=plain, library=library, fsspec=("adlfs", ADLFS)
        )


@contextmanager
def google() -> Iterator[Cloud]:
    script = (
        "import time\nfrom tests.servers.gcs import GcsServer\nwith GcsServer('bench') as server:\n"
        "    server.tokens.add('emulator')\n    print(server.url, flush=True)\n    time.sleep(1e6)\n"
    )
    with printing(["-c", script]) as url:
        bearer = {"Authorization": "Bearer emulator"}
        plain = {"root": "/bench", "query": "", "listing": "list-type=2", "headers": bearer}
        env, library = {"STORAGE_EMULATOR_HOST": url}, ("google-cloud-storage", GOOGLE)
        yield Cloud(
            name="Google", url=url, env=env, store="gs://bench", plain=plain, library=library, fsspec=("gcsfs", GCSFS)
        )


@contextmanager
def printing(words: list[str]) -> Iterator[str]:
    """A Python process that prints its address and goes on until the block ends."""
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def server(start: Callable[[], Any]) -> Iterator[str]:
    """A server of the tests; where they would skip, it is absent here."""
    import pytest

    with ExitStack() as stack:
        try:
            url = stack.enter_context(start())
        except pytest.skip.Exception as why:
            raise Absent(str(why)) from None
        yield url


if __name__ == "__main__":
    sys.exit(main())
