"""An object store by Headway, by the cloud's own client library and by fsspec, against one S3 server on this machine.

The server (moto) is the same for all and slower than any client: the limit is plain HTTP to it, without signatures,
retries or checksums. Each writes, reads and lists the same objects in turn; s3fs in an environment of its own.
Headway's own way is measured: uploads in parts where they are large, retries on.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Absent, environment, interleave, note
from tests.chaos.scenarios import bucket
from tests.servers import processes

REPEATS = 5
SMALL, LARGE = 40, 32 << 20  # how many kilobytes, one by one; bytes of one large object
JOBS = ("40 small writes", "40 small reads", "a write of 32 MB", "a read of 32 MB", "a listing of 40")

S3FS = """
import os, sys, uuid
import s3fs
files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], use_listings_cache=False)
root, large = "bench/" + uuid.uuid4().hex, b"x" * (32 << 20)
def read(key):
    with files.open(f"{root}/{key}") as file: return file.read()
jobs = [
    lambda: [files.pipe(f"{root}/small/{n}", b"y" * 1024) for n in range(40)],
    lambda: [files.cat_file(f"{root}/small/{n}") for n in range(40)],
    lambda: files.pipe(f"{root}/large", large),
    lambda: files.cat_file(f"{root}/large"),
    lambda: files.ls(f"{root}/small"),
]
for line in sys.stdin:
    jobs[int(line)]()
    print("done", flush=True)
"""


def main() -> int:
    with processes.moto() as endpoint:
        place = bucket(endpoint, "bench")
        os.environ.update(place.env)
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        clients = {"plain HTTP (the limit)": plain(endpoint), "Headway": headway(), "boto3": amazon(endpoint)}
        try:
            clients["fsspec (s3fs)"] = fsspec()
        except Absent as why:
            print(f"fsspec takes no part: {why}\n")
        for job in range(len(JOBS)):
            table(job, clients)
    return 0


def table(number: int, clients: dict[str, Callable[[int], object]]) -> None:
    rows = interleave({name: lambda run=run: run(number) for name, run in clients.items()}, REPEATS)  # type: ignore[misc]
    floor = rows[0].median
    print(f"{JOBS[number]}\n\n| | ms | × the limit |\n| --- | ---: | ---: |")
    for row in rows:
        print(f"| {row.name} | {row.median * 1e3:.1f} | {row.median / floor:.2f} |")
        note(JOBS[number], row.name, row.median * 1e3, "ms", limit="plain HTTP to the same server", floor=floor * 1e3)
    print(flush=True)


def _jobs(write: Any, read: Any, listing: Any) -> Callable[[int], object]:
    large = os.urandom(1 << 20) * (LARGE >> 20)
    work: list[Callable[[], object]] = [
        lambda: [write(f"small/{n}", b"y" * 1024) for n in range(SMALL)],
        lambda: [read(f"small/{n}") for n in range(SMALL)],
        lambda: write("large", large),
        lambda: read("large"),
        listing,
    ]
    return lambda number: work[number]()


def plain(endpoint: str) -> Callable[[int], object]:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    root = f"/bench/{uuid.uuid4().hex}"

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        connection.request(method, path, body)
        return connection.getresponse().read()

    return _jobs(
        lambda key, body: ask("PUT", f"{root}/{key}", body),
        lambda key: ask("GET", f"{root}/{key}"),
        lambda: ask("GET", f"/bench?list-type=2&prefix={root.removeprefix('/bench/')}/small/"),
    )


def headway() -> Callable[[int], object]:
    from headway.storage import open_store

    store = open_store(f"s3://bench/{uuid.uuid4().hex}")
    return _jobs(store.write, store.read, lambda: list(store.list("small/")))


def amazon(endpoint: str) -> Callable[[int], object]:
    import io

    import boto3  # type: ignore[import-untyped, unused-ignore]

    client, root = boto3.client("s3", endpoint_url=endpoint), uuid.uuid4().hex

    def write(key: str, body: bytes) -> None:
        if len(body) > 1 << 20:
            client.upload_fileobj(io.BytesIO(body), "bench", f"{root}/{key}")  # in parts, as its documentation advises
        else:
            client.put_object(Bucket="bench", Key=f"{root}/{key}", Body=body)

    def read(key: str) -> bytes:
        if key != "large":
            return bytes(client.get_object(Bucket="bench", Key=f"{root}/{key}")["Body"].read())
        to = io.BytesIO()
        client.download_fileobj("bench", f"{root}/{key}", to)
        return to.getvalue()

    return _jobs(write, read, lambda: client.list_objects_v2(Bucket="bench", Prefix=f"{root}/small/"))


def fsspec() -> Callable[[int], object]:
    python = environment("stores/fsspec", "s3fs")
    child = subprocess.Popen([python, "-c", S3FS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(number: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{number}\n")
        child.stdin.flush()
        if child.stdout.readline() != "done\n":
            raise RuntimeError("s3fs ended")

    return run


if __name__ == "__main__":
    sys.exit(main())
