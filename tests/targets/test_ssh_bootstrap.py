"""A bare Debian made ready by the real script with the real apt: in a root of its own, on a disk of its own, twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.targets.ssh import lifecycle
from tests.testbed.docker import base_tar, unavailable_reason

WHY_NOT = unavailable_reason() or ("" if Path("/dev/loop-control").exists() else "no loop devices")
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=f"ssh: {WHY_NOT}")]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine that has little more than apt."""
    root = tmp_path_factory.mktemp("bare")
    subprocess.run(["tar", "-C", str(root), "-xf", str(base_tar())], check=True)
    shutil.rmtree(root / "etc" / "apt")
    shutil.copytree("/etc/apt", root / "etc" / "apt")
    for name in ("resolv.conf", "hosts"):
        shutil.copyfile(f"/etc/{name}", root / "etc" / name)
    (root / "etc" / "fstab").write_text("")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # no service is started in it
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    shutil.copyfile(lifecycle.BOOTSTRAP_SCRIPT, root / "bootstrap.sh")
    return root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["losetup", "--find", "--show", str(tmp_path / "disk")], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device is to be had: {made.stderr.strip()}")
    yield made.stdout.strip()
    subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)


def boot(root: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run there, with mounts that go when it ends, as at a restart."""
    inside = f"mount --rbind /dev {root}/dev; mount -t proc proc {root}/proc; mount --rbind /sys {root}/sys; "
    script = inside + f"exec chroot {root} bash -euc " + json.dumps("; ".join(commands))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    env |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return subprocess.run(["unshare", "--mount", "sh", "-euc", script], env=env, capture_output=True, text=True)


def test_a_bare_machine_is_made_ready_once_and_a_second_time_changes_nothing(bare: Path, disk: str) -> None:
    call = f"bash /bootstrap.sh --gpu --docker --scratch {disk}"
    once = boot(bare, call, "echo photographs > /scratch/kept", "echo again", call)
    assert once.returncode == 0, once.stdout + once.stderr
    first, _, again = once.stdout.partition("again\n")
    for said in ("docker.io", "no NVIDIA device is here", f"formatted {disk}", f"mounted {disk} at /scratch"):
        assert said in first, first
    assert again.splitlines() == ["no NVIDIA device is here: no driver is installed", "ready"]
    assert json.loads((bare / "etc/docker/daemon.json").read_text()) == {"data-root": "/scratch/docker"}
    assert (bare / "etc/fstab").read_text() == "LABEL=headway-scratch /scratch ext4 defaults,nofail 0 2\n"

    restarted = boot(bare, call, "cat /scratch/kept")
    assert restarted.stdout.splitlines()[-3:] == [f"mounted {disk} at /scratch", "ready", "photographs"]
    assert "formatted" not in restarted.stdout
    assert (bare / "etc/fstab").read_text().count("scratch ext4") == 1


def partitioned(disk: str) -> None:
    """One partition of Linux's, in a table such as every tool writes."""
    entry = bytes([0, 0, 0, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
    with open(disk, "r+b") as device:
        device.seek(446)
        device.write(entry)
        device.seek(510)
        device.write(b"\x55\xaa")


def swap(disk: str) -> None:
    subprocess.run(["mkswap", disk], check=True, capture_output=True)


def photographs(disk: str) -> None:
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)


@pytest.mark.parametrize("made", [partitioned, swap, photographs])
def test_a_disk_that_carries_anything_is_never_formatted(bare: Path, disk: str, made: Callable[[str], None]) -> None:
    made(disk)
    before = Path(disk).read_bytes()
    refused = boot(bare, f"bash /bootstrap.sh --scratch {disk}")
    assert refused.returncode == 1, refused.stdout
    assert "carries data already" in refused.stderr
    assert "it is not touched" in refused.stderr
    assert Path(disk).read_bytes() == before
