"""A custom job as processes of this machine: started, restarted, preempted and cancelled the way Vertex AI does it.

Each replica has the variables that Vertex AI injects and nothing of the test's own environment. A replica that exits
with anything but 0 is started again, five times, and then the whole job three times. The job has succeeded when its
primary replica exits with 0.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER_RESTARTS, JOB_RETRIES = 5, 3


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a registry holds under a name. `files` are its folders, which here lie elsewhere."""

    files: Mapping[str, Path] = field(default_factory=dict)
    fresh: bool = False  # an interpreter of its own, into which pip may install

    def python(self, home: Path) -> str:
        if not self.fresh:
            return sys.executable
        folder = home / "image"
        if not folder.exists():
            venv.create(folder, with_pip=False, symlinks=True)
            inside = next((folder / "lib").iterdir()) / "site-packages"
            # What the image brings: everything that the tests' own interpreter has, but not its editable Headway.
            outside = next(path for path in sys.path if path.endswith("site-packages"))
            (inside / "brought.pth").write_text(f"{outside}\n")
        return str(folder / "bin" / "python")


@dataclass(kw_only=True)
class Replica:
    pool: int
    index: int
    spec: Mapping[str, Any]
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    preempted: bool = False

    @property
    def task(self) -> str:
        return f"workerpool{self.pool}-{self.index}"

    def signal(self, number: signal.Signals, *, group: bool = True) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        try:
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
        except ProcessLookupError:
            pass


Log = Callable[[str, str, str], None]  # task, severity, text


class Machines:
    """The machines of one job, until its end."""

    def __init__(
        self,
        job: dict[str, Any],
        *,
        images: Mapping[str, Image],
        environment: Mapping[str, str],
        fetch: Callable[[str], bytes],
        log: Log,
        grace_s: float = 20.0,
        restarts: int = WORKER_RESTARTS,
        retries: int = JOB_RETRIES,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self.job, self._images, self._environment = job, images, dict(environment)
        self._fetch, self._log, self._grace_s, self._may_start = fetch, log, grace_s, may_start
        self._home = Path(tempfile.mkdtemp(prefix="vertex-machine-"))
        self._changed = threading.Condition()
        self._cancelled = False
        self._restarts, self._retries = restarts, retries
        self.starts = 0
        pools = job["jobSpec"]["workerPoolSpecs"]
        self.replicas = [
            Replica(pool=number, index=index, spec=pool)
            for number, pool in enumerate(pools)
            for index in range(int(pool["replicaCount"]))
        ]
        self._port = _free_port()
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    # ── what happens to it ───────────────────────────────────────────────────

    def cancel(self) -> None:
        with self._changed:
            if self.job["state"] in ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
                self.job["state"] = "JOB_STATE_CANCELLING"
                self._cancelled = True
            self._changed.notify_all()

    def preempt(self, task: str) -> None:
        """A spot machine is taken away, and another comes in its place."""
        replica = next(each for each in self.replicas if each.task == task)
        replica.preempted = True
        replica.signal(signal.SIGTERM, group=False)
        threading.Timer(self._grace_s, replica.signal, args=(signal.SIGKILL,)).start()

    def crash(self, task: str) -> None:
        """The machine is gone at once."""
        replica = next(each for each in self.replicas if each.task == task)
        replica.signal(signal.SIGKILL)

    def exhaust(self) -> None:
        """It has been started again as often as Vertex AI does."""
        self._restarts = self._retries = 0

    # ── its life ─────────────────────────────────────────────────────────────

    def _live(self) -> None:
        try:
            self._run()
        finally:
            for replica in self.replicas:
                replica.signal(signal.SIGKILL)
            shutil.rmtree(self._home, ignore_errors=True)

    def _run(self) -> None:
        with self._changed:
            while not self._cancelled and not self._may_start():
                self._changed.wait(0.05)
        if self._cancelled:
            self._end("JOB_STATE_CANCELLED")
            return
        self.job["state"] = "JOB_STATE_PENDING"
        self._log("service", "INFO", "Waiting for job to be provisioned.")
        for replica in self.replicas:
            self._start(replica)
        with self._changed:
            if self.job["state"] == "JOB_STATE_PENDING":
                self.job["state"] = "JOB_STATE_RUNNING"
                self.job["startTime"] = _now()
        self._log("service", "INFO", "Job is running.")
        verdict = self._watched()
        self._stop_all()
        self._end(*verdict)

    def _watched(self) -> tuple[str, str]:
        """How it ends."""
        while not self._cancelled:
            for replica in self.replicas:
                verdict = self._looked_after(replica)
                if verdict is not None:
                    return verdict
            with self._changed:
                self._changed.wait(0.02)
        return "JOB_STATE_CANCELLED", ""

    def _looked_after(self, replica: Replica) -> tuple[str, str] | None:
        """How the job ends, where this replica decides it; a replica that has ended badly is started again."""
        assert replica.process is not None
        code = replica.process.poll()
        if code is None:
            return None
        if replica.reader is not None:
            replica.reader.join(5)
        if code == 0:
            return ("JOB_STATE_SUCCEEDED", "") if replica.pool == 0 else None
        why = f"The replica {replica.task} exited with a non-zero status of {code}."
        self._log("service", "ERROR", why)
        if replica.preempted:
            replica.preempted = False
            self._start(replica)
        elif self.job["jobSpec"].get("scheduling", {}).get("disableRetries"):
            return "JOB_STATE_FAILED", why
        elif replica.restarts < self._restarts:
            replica.restarts += 1
            self._start(replica)
        elif self._retries > 0:
            self._retries -= 1
            self._stop_all()
            for each in self.replicas:
                each.restarts = 0
                self._start(each)
        else:
            return "JOB_STATE_FAILED", why
        return None

    def _stop_all(self) -> None:
        for replica in self.replicas:
            replica.signal(signal.SIGTERM, group=False)
        limit = time.monotonic() + self._grace_s
        for replica in self.replicas:
            if replica.process is not None:
                try:
                    replica.process.wait(max(0.01, limit - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
            replica.signal(signal.SIGKILL)
            if replica.reader is not None:
                replica.reader.join(5)

    def _end(self, state: str, error: str = "") -> None:
        if error:
            self.job["error"] = {"code": 3, "message": error}
        self.job["endTime"] = _now()
        self._log("service", "INFO", f"Job ended: {state}")
        self.job["state"] = state

    # ── one container ────────────────────────────────────────────────────────

    def _start(self, replica: Replica) -> None:
        home = self._home / f"{replica.task}-{self.starts}"
        home.mkdir()
        self.starts += 1
        program = replica.spec.get("containerSpec") or replica.spec["pythonPackageSpec"]
        image = self._images[program.get("imageUri") or program["executorImageUri"]]
        env = self._variables(replica, program, home, image)
        python = image.python(home)
        if "containerSpec" in replica.spec:
            words = [*program.get("command", []), *program.get("args", [])]
        else:
            if not self._installed(replica, program, python, env, home):
                words = ["python3", "-c", "raise SystemExit(1)"]
            else:
                words = ["python3", "-m", program["pythonModule"], *program.get("args", [])]
        argv = [python if words[0] in ("python3", "python") else words[0], *words[1:]]
        replica.process = subprocess.Popen(
            argv, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        replica.reader = threading.Thread(target=self._read, args=(replica, replica.process), daemon=True)
        replica.reader.start()

    def _installed(
        self, replica: Replica, program: Mapping[str, Any], python: str, env: Mapping[str, str], home: Path
    ) -> bool:
        """As Vertex AI does it: the packages by force and alone, then with what they require."""
        paths = [home / uri.rpartition("/")[2] for uri in program["packageUris"]]
        for uri, path in zip(program["packageUris"], paths, strict=True):
            path.write_bytes(self._fetch(uri))
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
        for words in (["--upgrade", "--force-reinstall", "--no-deps"], []):
            call = [*pip, *words, *map(str, paths)]
            done = subprocess.run(call, env=env, cwd=home, capture_output=True, text=True, check=False)
            for line in (done.stdout + done.stderr).splitlines():
                self._log(replica.task, "INFO", line)
            if done.returncode:
                return False
        return True

    def _variables(self, replica: Replica, program: Mapping[str, Any], home: Path, image: Image) -> dict[str, str]:
        base = self.job["jobSpec"].get("baseOutputDirectory", {}).get("outputUriPrefix", "").rstrip("/")
        injected = {
            "CLOUD_ML_JOB_ID": self.job["name"].rpartition("/")[2],
            "CLOUD_ML_PROJECT_ID": "123456789",
            **({"AIP_MODEL_DIR": f"{base}/model/"} if base else {}),
            **({"AIP_CHECKPOINT_DIR": f"{base}/checkpoints/"} if base else {}),
            **({"AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/"} if base else {}),
        }
        if len(self.replicas) > 1:
            injected |= {"CLUSTER_SPEC": self._cluster(replica), "TF_CONFIG": "{}"}
            injected["HEADWAY_MASTER_PORT"] = str(self._port)  # one network for all jobs of this machine
        given = {pair["name"]: pair.get("value", "") for pair in program.get("env", [])}
        for inside, outside in image.files.items():
            given = {name: value.replace(inside, str(outside)) for name, value in given.items()}
        tmp = home / "tmp"
        tmp.mkdir()
        shell = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp), "PIP_NO_INDEX": "1"}
        return {**shell, **self._environment, **injected, **given}

    def _cluster(self, replica: Replica) -> str:
        cluster: dict[str, list[str]] = {}
        for each in self.replicas:
            cluster.setdefault(f"workerpool{each.pool}", []).append("127.0.0.1:2222")
        task = {"type": f"workerpool{replica.pool}", "index": replica.index}
        return json.dumps({"cluster": cluster, "environment": "cloud", "task": task, "job": "{}"})

    def _read(self, replica: Replica, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            self._log(replica.task, "INFO", raw.decode("utf-8", "replace").rstrip("\n"))


def _free_port() -> int:
    """Two in a row: supervisors meet beside the port of the ranks."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("", port + 1))
            except OSError:
                continue
            return port


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() % 10**9:09d}Z"
