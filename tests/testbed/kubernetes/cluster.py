"""A real Kubernetes for tests: a control plane and one node, with its own folder, stopped and swept afterwards.

Built once by `build` beside this file, from Debian's source, into ~/.cache/headway-testbed. Pods really run; names of
headless services resolve; pods reach an S3 server of this machine. KUBECONFIG names another cluster instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.core.plan import Code
from tests.testbed.kubernetes import names, paperwork
from tests.testbed.kubernetes.images import TRAINER, lay_ready, lay_supervisor_ready, site_packages
from tests.waiting import wait_until

CACHE = Path(os.environ.get("TESTBED") or "~/.cache/headway-testbed").expanduser() / "kubernetes"
RUN, BIN = CACHE / "run", CACHE / "bin"
PORT, ETCD = 16443, 12379
GATEWAY, API_ADDRESS = "10.244.0.1", "10.96.0.1"  # of the pods' network, and the cluster's own name for its API
NODE = "vm"
START_S = 120.0
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "pause")
TOOLS = ("etcd", "containerd", "runc", "ctr", "kubectl", "ip", "openssl")
_BETWEEN_PODS = ("-i", "k8sbr0", "-o", "k8sbr0", "-j", "ACCEPT")
_running: list[Cluster] = []


@dataclass(frozen=True, slots=True)
class Cluster:
    """What tests need to know of it."""

    kubeconfig: str
    image: str  # with Python and Headway, on every node
    host: str  # this machine, as pods see it
    ours: bool  # the test bed, whose node is this machine
    site: str | None = None  # a folder of the nodes with the packages that the image lacks

    def lay_supervisor_ready(self, code: Code) -> None:
        """Put the supervisor's image on the node of the test bed."""
        lay_supervisor_ready(CACHE, _socket(), code)

    def kubectl(self, *words: str, check: bool = True) -> str:
        """The cluster behind Headway's back."""
        env = {**os.environ, "KUBECONFIG": self.kubeconfig}
        done = subprocess.run(["kubectl", *words], env=env, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def items(self, kind: str, selector: str = "headway.run", *, namespace: str = "default") -> list[dict[str, Any]]:
        shown = self.kubectl("-n", namespace, "get", kind, "-l", selector, "-o", "json")
        found: list[dict[str, Any]] = json.loads(shown)["items"]
        return found


def unavailable_reason() -> str:
    """Why none can run here; empty where one can."""
    if os.environ.get("KUBECONFIG"):
        lacking = [name for name in ("HEADWAY_TEST_IMAGE", "HEADWAY_TEST_HOST") if not os.environ.get(name)]
        return f"KUBECONFIG is set, and {' and '.join(lacking)} is not (see docs/targets-kubernetes.md)" * bool(lacking)
    if os.getuid():
        return "a cluster of our own needs root"
    if not all((BIN / name).exists() for name in PROGRAMS):
        return "it is not built: scripts/test-kubernetes builds it"
    lacking = [name for name in TOOLS if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed: scripts/test-kubernetes installs it" if lacking else ""


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One for the session, whoever imports this."""
    reason = unavailable_reason()
    if reason:
        pytest.skip(f"kubernetes: {reason}")
    if not _running:
        holding = started()
        _running.append(holding.__enter__())
        request.config.add_cleanup(lambda: (holding.__exit__(None, None, None), None)[1])
    return _running[0]


def ready(cluster: Cluster, namespace: str) -> None:
    """A namespace of a test's own, with the account that pods begin with."""
    cluster.kubectl("create", "namespace", namespace, check=False)
    account = ("-n", namespace, "get", "serviceaccount", "default", "-o", "name")
    _await(lambda: "default" in cluster.kubectl(*account, check=False), f"{namespace} is ready")


@contextmanager
def started() -> Iterator[Cluster]:
    if os.environ.get("KUBECONFIG"):
        image, host = os.environ["HEADWAY_TEST_IMAGE"], os.environ["HEADWAY_TEST_HOST"]
        yield Cluster(os.environ["KUBECONFIG"], image, host, False, os.environ.get("HEADWAY_TEST_SITE"))
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock, ExitStack() as everything:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one folder serves one cluster
        sweep()
        everything.callback(sweep)
        bed = _Bed(everything)
        bed.control_plane()
        cluster = Cluster(str(RUN / "kubeconfig"), TRAINER, GATEWAY, True, site_packages())
        bed.network(cluster)
        bed.node(cluster)
        everything.callback(_empty, cluster)
        yield cluster


class _Bed:
    """Starts the programs; each is stopped, in reverse, when the stack unwinds."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        for folder in ("pki", "log", "etcd", "kubelet", "cni/net.d", "containerd"):
            (RUN / folder).mkdir(parents=True, exist_ok=True)

    def control_plane(self) -> None:
        paperwork.certificates(RUN / "pki", API_ADDRESS, NODE)
        paperwork.kubeconfigs(RUN, f"https://127.0.0.1:{PORT}")
        etcd, peers = f"http://127.0.0.1:{ETCD}", f"http://127.0.0.1:{ETCD + 1}"
        self._start(
            "etcd", "--data-dir", f"{RUN}/etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._start(f"{BIN}/kube-apiserver", *paperwork.apiserver(RUN / "pki", etcd, PORT))
        _await(lambda: _kubectl("get", "--raw", "/readyz") == "ok", "the API server answers")
        self._start(f"{BIN}/kube-controller-manager", *paperwork.controller_manager(RUN))
        self._start(
            f"{BIN}/kube-scheduler", f"--kubeconfig={RUN}/kubeconfig", "--bind-address=127.0.0.1", "--port=0",
            "--leader-elect=false",
        )  # fmt: skip
        _await(lambda: "default" in _kubectl("get", "serviceaccount", "-o", "name"), "the namespace is ready")

    def network(self, cluster: Cluster) -> None:
        """A bridge for the pods; on it this machine answers for the cluster's API and for its names."""
        for words in (
            ("link", "add", "k8sbr0", "type", "bridge"),
            ("addr", "add", f"{GATEWAY}/24", "dev", "k8sbr0"),
            ("addr", "add", f"{API_ADDRESS}/32", "dev", "k8sbr0"),
            ("link", "set", "k8sbr0", "up"),
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        # A Docker daemon on this machine drops what it does not know, also between the ports of a bridge.
        subprocess.run(["iptables", "-I", "FORWARD", *_BETWEEN_PODS], check=False, capture_output=True)
        self._stack.enter_context(names.forwarded((API_ADDRESS, 443), ("127.0.0.1", PORT)))
        self._stack.enter_context(names.served(GATEWAY, cluster.kubeconfig))

    def node(self, cluster: Cluster) -> None:
        paperwork.node_files(RUN, GATEWAY)
        self._start("containerd", "--config", f"{RUN}/containerd/config.toml")
        _await(
            lambda: subprocess.run(["ctr", "-a", _socket(), "version"], capture_output=True).returncode == 0,
            "containerd",
        )
        lay_ready(CACHE, _socket())
        kernel = ("kernel.panic", "kernel.panic_on_oops", "vm.overcommit_memory")  # which the kubelet sets for itself
        before = [
            subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip() for name in kernel
        ]
        self._start(
            f"{BIN}/kubelet", f"--config={RUN}/kubelet.yaml", f"--kubeconfig={RUN}/node.kubeconfig",
            f"--root-dir={RUN}/kubelet", f"--hostname-override={NODE}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{_socket()}", f"--cert-dir={RUN}/pki", "--runtime-cgroups=/k8s-rt",
        )  # fmt: skip
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        _await(lambda: "True" in _kubectl("get", "nodes", "-o", f"jsonpath={ready}"), "the node is ready")
        _lend_gpus()
        for name, value in zip(kernel, before, strict=True):
            subprocess.run(["sysctl", "-qw", f"{name}={value}"], check=False)

    def _start(self, program: str, *words: str) -> None:
        name = Path(program).name
        with open(RUN / "log" / f"{name}.log", "wb") as log:
            process = subprocess.Popen([program, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=RUN,
                                       start_new_session=True)  # fmt: skip
        (RUN / f"{name}.pid").write_text(str(process.pid))
        self._stack.callback(_stop, process)


def _lend_gpus(count: int = 8) -> None:
    """What no device plugin counts, the scheduler believes: enough for objects that ask for GPUs to become pods."""
    _kubectl("label", "node", NODE, "cloud.google.com/gke-accelerator=nvidia-tesla-t4")
    patch = {"status": {"capacity": {"nvidia.com/gpu": str(count)}, "allocatable": {"nvidia.com/gpu": str(count)}}}
    words = ("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    _kubectl(*words)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)  # the API server would wait for its watchers
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _empty(cluster: Cluster) -> None:
    """No pod outlives the cluster."""
    for kind in ("statefulset", "job", "pod"):
        cluster.kubectl("delete", kind, "--all", "--grace-period=0", "--force", check=False)
    limit = time.monotonic() + 20
    while subprocess.run(["ctr", "-a", _socket(), "-n", "k8s.io", "tasks", "ls", "-q"],
                         capture_output=True).stdout.strip() and time.monotonic() < limit:  # fmt: skip
        time.sleep(0.3)


def sweep() -> None:
    """What a session that was killed has left: by its pid files, its folder and its bridge, nothing else."""
    for file in RUN.glob("*.pid"):
        pid = int(file.read_text())
        if str(CACHE).encode() in _command(pid) or str(RUN).encode() in _command(pid):
            os.kill(pid, signal.SIGKILL)
        file.unlink()
    for pid in _shims():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _shims(), "containerd's shims are gone")
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{RUN}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    for group in Path("/sys/fs/cgroup").glob("*/kubepods"):
        for folder in sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True):
            _quietly(folder.rmdir)
        _quietly(group.rmdir)
    for namespace in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout.split():
        if namespace.startswith("cni-"):
            shown = subprocess.run(["ip", "-n", namespace, "-4", "-o", "addr"], capture_output=True, text=True).stdout
            if " 10.244.0." in shown:
                subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
    subprocess.run(["iptables", "-D", "FORWARD", *_BETWEEN_PODS], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", "k8sbr0"], capture_output=True)
    for name in ("etcd", "kubelet", "cni", "pki", "containerd/state"):
        shutil.rmtree(RUN / name, ignore_errors=True)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def _quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except OSError:
        pass  # still in use, or gone


def _socket() -> str:
    return f"{RUN}/containerd/containerd.sock"


def _kubectl(*words: str) -> str:
    env = {**os.environ, "KUBECONFIG": f"{RUN}/kubeconfig"}
    return subprocess.run(["kubectl", *words], env=env, capture_output=True, text=True).stdout.strip()


def _shims() -> list[int]:
    """Return the processes that hold this testbed's containers."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    words = {pid: _command(pid) for pid in pids}
    return [pid for pid in pids if b"containerd-shim" in words[pid] and _socket().encode() in words[pid]]


def _await(done: Callable[[], bool], what: str) -> None:
    def explain() -> str:
        logs = [f"{log.name}: {log.read_text(errors='replace').splitlines()[-1:]}" for log in (RUN / "log").iterdir()]
        return "\n".join([what, *logs])

    wait_until(done, explain, START_S)


if __name__ == "__main__":  # python -m tests.testbed.kubernetes.cluster: why not, or a cluster until Enter is pressed
    if sys.argv[1:] == ["lacking"]:
        print(unavailable_reason())
        sys.exit(1 if unavailable_reason() else 0)
    with started() as bed:
        print(f"export KUBECONFIG={bed.kubeconfig}", flush=True)
        sys.stdin.read()
