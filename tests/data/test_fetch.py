from __future__ import annotations

import base64
import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.core.errors import BadInput, Denied, NotThere, StoreError, Transient
from headway.data.download import resolve
from headway.data.download.http import Login, download
from headway.data.download.resolve import KNOWN, KnownDataset, Part, downloads
from headway.data.prepare.pipeline import prepare
from headway.storage import open_store
from tests.data import layouts
from tests.servers.loopback import Answer, Fault, LoopbackServer, Request

BODY = bytes(range(256)) * 9000  # 2.3 MB: several blocks


class Site:
    """Serves one file as a good server does: ranges, entity tags, and what it is told to get wrong."""

    def __init__(self) -> None:
        self.body, self.tag, self.ranges = BODY, '"v1"', True
        self.needs: str | None = None
        self.redirect: str | None = None

    def answer(self, request: Request) -> Answer:
        if self.redirect is not None and request.path.startswith("/moved"):
            return Answer(status=302, headers={"Location": self.redirect})
        if request.path == "/nothing":
            return Answer(status=404)
        if self.needs is not None and request.headers.get("authorization") != self.needs:
            return Answer(status=401)
        headers = {"ETag": self.tag} if self.tag else {}
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if asked and self.ranges and request.headers.get("if-range", self.tag) == self.tag:
            start = int(asked[1])
            if start >= len(self.body):
                return Answer(status=416, headers={"Content-Range": f"bytes */{len(self.body)}"})
            headers["Content-Range"] = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
            return Answer(status=206, headers=headers, body=self.body[start:])
        return Answer(headers=headers, body=self.body)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def server(site: Site) -> Iterator[LoopbackServer]:
    with LoopbackServer(site.answer) as server:
        yield server


def test_a_file_arrives_whole_with_progress(server: LoopbackServer, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = download(f"{server.url}/a%20b.bin?x=1", tmp_path, progress=lambda *words: told.append(words))
    assert path == tmp_path / "a_b.bin"
    assert path.read_bytes() == BODY
    assert told[-1] == ("a_b.bin", len(BODY), len(BODY))
    assert [item.name for item in tmp_path.iterdir()] == ["a_b.bin"]


def test_a_broken_download_is_taken_up_where_it_broke(server: LoopbackServer, tmp_path: Path) -> None:
    server.faults.append(Fault(kind="cut"))
    path = download(f"{server.url}/file.bin", tmp_path)
    assert path.read_bytes() == BODY
    first, second = server.requests
    assert "range" not in first.headers
    assert second.headers["if-range"] == '"v1"'
    assert int(second.headers["range"].removeprefix("bytes=").rstrip("-")) > 0


def test_a_killed_download_is_taken_up_by_the_next_start(server: LoopbackServer, tmp_path: Path) -> None:
    server.faults += [Fault(kind="cut"), Fault(kind="refuse")]
    with pytest.raises(Transient):
        download(f"{server.url}/file.bin", tmp_path, retry_for_s=0)
    assert (tmp_path / "file.bin.part").stat().st_size > 0
    assert not (tmp_path / "file.bin").exists()
    assert download(f"{server.url}/file.bin", tmp_path).read_bytes() == BODY
    assert "range" in server.requests[-1].headers


def test_a_file_that_changed_meanwhile_is_begun_anew(server: LoopbackServer, site: Site, tmp_path: Path) -> None:
    server.faults += [Fault(kind="cut"), Fault(kind="refuse")]
    with pytest.raises(Transient):
        download(f"{server.url}/file.bin", tmp_path, retry_for_s=0)
    site.body, site.tag = BODY[::-1], '"v2"'
    assert download(f"{server.url}/file.bin", tmp_path).read_bytes() == BODY[::-1]


@pytest.mark.parametrize("cannot", ["ranges", "tags"])
def test_servers_that_cannot_resume_are_asked_for_all_of_it(
    server: LoopbackServer, site: Site, tmp_path: Path, cannot: str
) -> None:
    site.ranges, site.tag = cannot != "ranges", "" if cannot == "tags" else '"v1"'
    server.faults.append(Fault(kind="cut"))
    assert download(f"{server.url}/file.bin", tmp_path).read_bytes() == BODY


def test_what_was_whole_but_not_yet_named_is_not_fetched_again(server: LoopbackServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY)
    (tmp_path / "file.bin.part.json").write_text(f'{{"url": "{server.url}/file.bin", "mark": "\\"v1\\""}}')
    assert download(f"{server.url}/file.bin", tmp_path).read_bytes() == BODY
    assert server.requests[0].headers["range"] == f"bytes={len(BODY)}-"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: LoopbackServer, tmp_path: Path, status: int) -> None:
    server.faults.append(Fault(kind="refuse", status=status))
    assert download(f"{server.url}/file.bin", tmp_path).read_bytes() == BODY


def test_checksums_are_checked_and_damage_is_not_kept(server: LoopbackServer, tmp_path: Path) -> None:
    good = hashlib.sha256(BODY).hexdigest()
    assert download(f"{server.url}/file.bin#sha256={good}", tmp_path / "a").exists()
    assert download(f"{server.url}/file.bin", tmp_path / "b", checksum=f"md5:{hashlib.md5(BODY).hexdigest()}").exists()
    with pytest.raises(StoreError, match="does not match its checksum"):
        download(f"{server.url}/file.bin#sha256={'0' * 64}", tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_user_and_key_go_to_their_host_and_to_no_other(server: LoopbackServer, site: Site, tmp_path: Path) -> None:
    login = Login(user="me", key="s3cret-key")
    site.needs = "Basic " + base64.b64encode(b"me:s3cret-key").decode()
    with pytest.raises(Denied, match="--user env:KAGGLE_USERNAME"):
        download(f"{server.url}/file.bin", tmp_path)
    assert download(f"{server.url}/file.bin", tmp_path, login=login).read_bytes() == BODY
    assert "s3cret" not in repr(login)
    with LoopbackServer(Site().answer) as elsewhere:
        site.redirect = f"{elsewhere.url}/signed.bin"
        assert download(f"{server.url}/moved.bin", tmp_path / "x", login=login).read_bytes() == BODY
        assert "authorization" not in elsewhere.requests[0].headers
    site.redirect = "/other.bin"
    assert download(f"{server.url}/moved2.bin", tmp_path / "y", login=login).read_bytes() == BODY


def test_redirects_to_other_schemes_are_not_followed(server: LoopbackServer, site: Site, tmp_path: Path) -> None:
    site.redirect = "file:///etc/passwd"
    with pytest.raises(StoreError, match=r"not (followed|allowed)"):
        download(f"{server.url}/moved", tmp_path)


@pytest.mark.parametrize(
    "url", ["ftp://host/file", "https:///x", "https://me:pw@host/x", "https://host/x#sha256=12", "file:///etc/passwd"]
)
def test_addresses_that_are_none_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        download(url, tmp_path)


def test_nothing_there_and_nobody_there_are_told_apart(server: LoopbackServer, tmp_path: Path) -> None:
    with pytest.raises(NotThere, match="check the address"):
        download(f"{server.url}/nothing", tmp_path)
    with pytest.raises(Transient, match="the connection broke"):
        download("http://127.0.0.1:9/file", tmp_path, retry_for_s=0)


def packed(folder: Path, archive: Path, inside: str = "set/") -> bytes:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, inside + str(path.relative_to(folder)))
    return archive.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_url_of_an_archive_is_fetched_unpacked_and_prepared(
    server: LoopbackServer, site: Site, tmp_path: Path, cache: Path
) -> None:
    site.body = packed(layouts.coco(tmp_path / "coco"), tmp_path / "coco.zip")
    told: list[str] = []
    summary = prepare(
        f"{server.url}/coco.zip", str(tmp_path / "out"), size=32, workers=1, progress=lambda what, *_: told.append(what)
    )
    assert summary.rows == {"train": 6, "val": 3}
    assert summary.manifest.name == "coco.zip"
    assert "fetching coco.zip" in told
    prepare(f"{server.url}/coco.zip", str(tmp_path / "out2"), size=40, workers=1)
    assert len(server.requests) == 1  # what was fetched once is found again
    assert not list(downloads().rglob("*.zip"))  # and the archive itself is not kept beside its files


def test_an_archive_here_or_in_a_store_is_unpacked_too(tmp_path: Path, cache: Path) -> None:
    body = packed(layouts.flickr8k(tmp_path / "f"), tmp_path / "f.zip", inside="")
    assert resolve.resolve(str(tmp_path / "f.zip")).url.startswith(str(cache))
    assert (tmp_path / "f.zip").exists()
    open_store("memory://test-fetch").write("sets/f.zip", body)
    summary = prepare("memory://test-fetch/sets/f.zip", str(tmp_path / "out"), size=32, workers=1)
    assert summary.rows == {"train": 4, "val": 2, "test": 2}


def test_a_known_name_brings_its_parts_format_and_year(
    server: LoopbackServer, site: Site, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real addresses cannot be reached from a test: the entry is replaced, the path through it is the real one."""
    whole = layouts.coco(tmp_path / "coco", year="2014")
    parts = {}
    for name in ("annotations", "train2014", "val2014"):
        (tmp_path / name).mkdir()
        shutil.copytree(whole / name, tmp_path / name / name)
        parts[f"/{name}.zip"] = packed(tmp_path / name, tmp_path / f"{name}.zip", inside="")

    def answer(request: Request) -> Answer:
        return Answer(body=parts[request.path], headers={"ETag": '"1"'})

    monkeypatch.setattr(server, "_answer", answer)
    listed = tuple(Part(server.url + path, hashlib.md5(body).hexdigest()) for path, body in parts.items())
    monkeypatch.setitem(KNOWN, "coco2014", KnownDataset(parts=listed, format="coco", year="2014", terms=""))
    summary = prepare("coco2014", str(tmp_path / "out"), size=32, workers=1)
    assert summary.rows == {"train": 6, "val": 3}
    assert summary.manifest.name == "coco2014"


def test_known_data_sets_have_addresses_and_checksums_of_the_right_form() -> None:
    assert list(KNOWN) == ["coco2014", "coco2017", "flickr8k", "vizwiz"]
    for entry in KNOWN.values():
        for part in entry.parts:
            assert part.url.startswith(("http://", "https://"))
            assert part.md5 == "" or re.fullmatch(r"[0-9a-f]{32}", part.md5)
    with pytest.raises(BadInput, match="coco2014, coco2017"):
        resolve.known_dataset("imagenet")


def test_a_source_that_is_not_there_says_which_names_are_known(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="known by name: coco2014"):
        resolve.resolve("cocoo2014")
    (tmp_path / "notes.pdf").write_text("x")
    with pytest.raises(BadInput, match="not an archive"):
        resolve.resolve(str(tmp_path / "notes.pdf"))
