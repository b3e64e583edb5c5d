"""Process 1 in an image that Headway did not build: install the planned code and Headway, then exec the supervisor.

It runs before Headway is installed, so it uses the standard library only: as text after `python3 -c`, or as the module
of a source package. It never replaces the image's torch: pip is constrained to the installed version.

In an image of the user's, the supervisor runs on an interpreter of its own, which is downloaded with the code. The
image's Python runs this file and the project alone, so it may be old: this file has the syntax of Python 3.6.
"""

import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Optional  # noqa: UP035 - Python 3.6

SPEC = "HEADWAY_BOOT"  # {"code", "wheel", "requirements", "listed", "install", "needs", "setup", "runtime"}
BAD_INPUT, AGAIN = 2, 143
# Built for the image's driver and for each other: versions installed by pip in their place may not run there.
HELD = ("torch", "torchvision", "torchaudio", "torch-xla", "tensorflow", "tensorflow-gpu", "jax", "jaxlib", "triton")
TRIES = 5
METADATA = "computeMetadata/v1/instance/service-accounts/default/token"


def main(code_tar: Optional[bytes] = None) -> NoReturn:  # noqa: UP045
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
        with zipfile.ZipFile(str(wheel)) as content:
            content.extractall(str(work / "headway"))
    check(code_tar, spec["code"], "the code")
    unpack(code_tar, code)
    install(spec, code, work)
    start(spec, code, url, supervisor(spec, work, outputs))


def supervisor(spec: Dict[str, Any], work: Path, outputs: str) -> List[str]:  # noqa: UP006
    """Return the command of the supervisor: on an interpreter of its own if the plan names one, else on this one."""
    if not spec.get("runtime"):
        if (work / "headway").exists():
            path = [str(work / "headway"), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return [sys.executable, "-m", "headway.runtime.worker"]
    tar = gzip.decompress(fetch(f"{outputs}/code/{spec['runtime']}"))
    check(tar, spec["runtime"].partition("-")[2].partition(".")[0], spec["runtime"])
    root = work / "runtime"
    unpack(tar, root)
    os.environ["HEADWAY_PYTHON"] = sys.executable
    entry = str(work / "headway/headway/supervisor/image_entry.py")
    python = [str(root / "lib/ld.so"), "--library-path", str(root / "lib"), str(root / "bin/python3"), "-I", "-S"]
    return [*python, entry, "headway.runtime.worker"]


def install(spec: Dict[str, Any], code: Path, work: Path) -> None:  # noqa: UP006
    """Install the user's and Headway's requirements in one pip call, so that pip detects conflicts between them."""
    wanted = [*(["-r", spec["requirements"]] if spec.get("requirements") else []), *spec.get("listed", ())]
    if spec.get("install"):  # from a copy: its build leaves files behind that are not the program's
        wanted.append(str(shutil.copytree(code, work / "project")))
    if spec["needs"]:
        needs = work / "needs.txt"
        needs.write_text("\n".join(spec["needs"]) + "\n")
        wanted += ["-r", str(needs)]
    if not wanted:
        return
    held = work / "held.txt"
    held.write_text("".join(f"{line}\n" for line in pins()))
    pip("the requirements", code, *wanted, "-c", str(held))


def pins() -> List[str]:  # noqa: UP006
    """Return pip constraints that pin the image's frameworks, without local versions (2.4.0+cu121 becomes 2.4.0)."""
    versions = {name: installed(name) for name in HELD}
    return [f"{name}=={version.partition('+')[0]}" for name, version in versions.items() if version]


def installed(name: str) -> str:
    """Return the version of a package of this interpreter; empty if it is not installed."""
    try:
        metadata: Any = import_module("importlib.metadata")
    except ImportError:  # before Python 3.8
        packages: Any = import_module("pkg_resources")
        return next((str(each.version) for each in packages.working_set if each.key == name), "")
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return ""


def pip(what: str, folder: Path, *words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location")
    done = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *words], cwd=folder, check=False)
    if done.returncode:
        held = ", ".join(pins()) or "nothing"
        end(f"pip could not install {what} beside the packages of this image ({held}); its messages are above")


def start(spec: Dict[str, Any], code: Path, url: str, words: List[str]) -> NoReturn:  # noqa: UP006
    """Exec the supervisor. `setup` runs in the shell that then execs it, so that its exports stay in effect."""
    os.environ["HEADWAY_CODE_DIR"] = str(code)
    command = [*words, "--run", url]
    os.chdir(code)
    sys.stdout.flush()
    if not spec["setup"]:
        os.execv(command[0], command)
    failed = "{ echo 'headway: setup failed' >&2; exit 2; }"
    steps = [f"{{\n{step}\n}} || {failed}" for step in spec["setup"]]
    words = [shlex.quote(word) for word in command]
    script = "\n".join([*steps, f"cd {shlex.quote(str(code))} || exit 2", f"exec {' '.join(words)}"])
    shell = "bash" if shutil.which("bash") else "sh"
    os.execvp(shell, [shell, "-c", script])


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
