"""Process 1 in an image that Headway did not build: install the planned code and Headway, then exec the supervisor.

It runs before Headway is installed, so it uses the standard library only: as text after `python3 -c`, or as the module
of a source package. It never replaces the image's torch: pip is constrained to the installed version.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

SPEC = "HEADWAY_BOOT"  # {"code", "wheel", "requirements", "needs", "setup"}
BAD_INPUT, AGAIN = 2, 143
# Built for the image's driver and for each other: versions installed by pip in their place may not run there.
HELD = ("torch", "torchvision", "torchaudio", "torch-xla", "tensorflow", "tensorflow-gpu", "jax", "jaxlib", "triton")
TRIES = 5
METADATA = "computeMetadata/v1/instance/service-accounts/default/token"


def main(code_tar: bytes | None = None) -> NoReturn:
    """Install everything and start the supervisor.

    `code_tar` is the code if the source package contains it; else it is downloaded, like Headway's wheel.
    """
    spec: dict[str, Any] = json.loads(os.environ.pop(SPEC))
    url = os.environ["HEADWAY_RUN_URL"]
    outputs = url.rpartition("/")[0]
    work = Path(tempfile.mkdtemp(prefix="headway-boot-"))
    code = work / "code"
    if code_tar is None:
        code_tar = gzip.decompress(fetch(f"{outputs}/code/{spec['code']}.tar.gz"))
        wheel = work / spec["wheel"]
        wheel.write_bytes(fetch(f"{outputs}/code/{spec['wheel']}"))
        check(wheel.read_bytes(), spec["wheel_sha256"], spec["wheel"])
        # In its own folder, ahead of the image's packages: this run's Headway, whatever else is installed.
        pip("the wheel of Headway", work, "--no-deps", "--target", str(work / "headway"), str(wheel))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(work / "headway"), os.environ.get("PYTHONPATH", "")])
        )
    check(code_tar, spec["code"], "the code")
    unpack(code_tar, code)
    install(spec, code, work)
    start(spec, code, url)


def install(spec: dict[str, Any], code: Path, work: Path) -> None:
    """Install the user's and Headway's requirements in one pip call, so that pip detects conflicts between them."""
    wanted = ["-r", spec["requirements"]] if spec.get("requirements") else []
    if spec["needs"]:
        needs = work / "needs.txt"
        needs.write_text("\n".join(spec["needs"]) + "\n")
        wanted += ["-r", str(needs)]
    if not wanted:
        return
    held = work / "held.txt"
    held.write_text("".join(f"{line}\n" for line in pins()))
    pip("the requirements", code, *wanted, "-c", str(held))


def pins() -> list[str]:
    """Return pip constraints that pin the image's frameworks, without local versions (2.4.0+cu121 becomes 2.4.0)."""
    found = []
    for name in HELD:
        try:
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            continue
    return found


def pip(what: str, folder: Path, *words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location")
    done = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *words], cwd=folder, check=False)
    if done.returncode:
        held = ", ".join(pins()) or "nothing"
        end(f"pip could not install {what} beside what this image brings ({held}); its own words are above")


def start(spec: dict[str, Any], code: Path, url: str) -> NoReturn:
    """Exec the supervisor. `setup` runs in the shell that then execs it, so that its exports stay in effect."""
    os.environ["HEADWAY_CODE_DIR"] = str(code)
    command = [sys.executable, "-m", "headway.runtime.worker", "--run", url]
    os.chdir(code)
    sys.stdout.flush()
    if not spec["setup"]:
        os.execv(command[0], command)
    failed = "{ echo 'headway: setup failed' >&2; exit 2; }"
    steps = [f"{{\n{step}\n}} || {failed}" for step in spec["setup"]]
    script = "\n".join([*steps, f"cd {shlex.quote(str(code))} || exit 2", f"exec {shlex.join(command)}"])
    os.execvp("bash", ["bash", "-c", script])


def fetch(url: str) -> bytes:
    """Download an object of Cloud Storage with the token of the job's service account."""
    bucket, _, name = url.partition("://")[2].partition("/")
    host = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    address = f"{host}/{bucket}/{urllib.parse.quote(name)}"

    def ask() -> bytes:
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token()}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
            return body

    return patiently(ask, url)


def token() -> str:
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return "emulator"
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(f"http://{host}/{METADATA}", headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["access_token"])


def patiently(ask: Callable[[], bytes], what: str) -> bytes:
    """Retry with exponential back-off: the network may be unreliable just after a machine has started."""
    for tried in range(1, TRIES + 1):
        try:
            return ask()
        except OSError as error:  # the base class of urllib's errors
            status = getattr(error, "code", None)
            if status in (401, 403, 404):
                end(f"{what} cannot be read ({status}): may the job's service account read that bucket?")
            if tried == TRIES:
                end(f"{what} cannot be read: {error}", AGAIN)
            time.sleep(2.0 ** (tried - 2))
    raise AssertionError("the last try ends the process")


def check(body: bytes, sha256: str, what: str) -> None:
    if hashlib.sha256(body).hexdigest() != sha256:
        end(f"{what} is not the one that was planned")


def unpack(tar: bytes, to: Path) -> None:
    to.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            if not member.isreg() or member.name.startswith("/") or ".." in Path(member.name).parts:
                end(f"the code holds {member.name!r}, which is no plain file")
            body = members.extractfile(member)
            assert body is not None  # isreg
            target = to / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body.read())
            target.chmod(member.mode)


def end(why: str, code: int = BAD_INPUT) -> NoReturn:
    sys.stderr.write(f"headway: {why}\n")
    sys.stderr.flush()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
