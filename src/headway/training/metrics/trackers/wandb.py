"""Weights & Biases tracker, by W&B's own client: one W&B run for all attempts. Offline if there is no API key.

Offline, each attempt rewrites the whole history in files/wandb: one folder, which `wandb sync` uploads as one run.
Online, the server reports its last step. Steps that a killed attempt had sent and this one repeats keep their first
values.
"""

from __future__ import annotations

import netrc
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# By default the client reports its own errors to W&B. Disabled, to keep what runs here private.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from headway.training.metrics.trackers.base import TrackerRunInfo

SERVER = "https://api.wandb.ai"


class WeightsAndBiases:
    def __init__(self, run_info: TrackerRunInfo) -> None:
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if has_key(os.environ) else "offline")
        self._scratch = tempfile.TemporaryDirectory(prefix="headway-wandb-")
        folder = Path(run_info.folder if mode == "offline" else self._scratch.name)
        earlier = list(folder.glob(f"wandb/offline-run-*-{run_info.id}"))
        self._run = wandb.init(
            id=run_info.id,
            name=run_info.run,
            project=os.environ.get("WANDB_PROJECT") or run_info.project,
            resume=None if mode == "offline" else "allow",  # offline there is no server to ask
            config={**run_info.config, "headway": {**run_info.facts, "run_folder": run_info.url}},
            settings=wandb.Settings(
                mode=mode,
                root_dir=str(folder),
                console="off",
                disable_git=True,
                save_code=False,
                x_stats_pid=run_info.pid,
            ),
        )
        for earlier_folder in earlier:
            shutil.rmtree(earlier_folder)
        self._sent = self._run.starting_step - 1
        self.where = self._run.url or f"{self._run.settings.sync_dir} (no API key: offline; upload it with wandb sync)"

    def knows(self, name: str, step: int) -> bool:
        return step <= self._sent

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "_timestamp": time_s}, step=step)

    def flush(self) -> None:
        pass  # the client sends in the background

    def close(self, *, finished: bool) -> None:
        if not finished:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if finished else 143)
        self._scratch.cleanup()


def has_key(env: Mapping[str, str]) -> bool:
    """Whether the client would find credentials: in the environment, or where `wandb login` stores them."""
    if env.get("WANDB_API_KEY") or env.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(env.get("NETRC") or "~/.netrc").expanduser()
    host = urlsplit(env.get("WANDB_BASE_URL") or SERVER).hostname or ""
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
