"""Files that never go into an image: data, weights, secrets, and what Headway itself writes. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from headway.packaging.code import NEVER, SECRETS

WEIGHTS = ("*.bin", "*.ckpt", "*.gguf", "*.h5", "*.keras", "*.onnx", "*.pb", "*.pt", "*.pth", "*.safetensors",
           "*.tflite")  # fmt: skip
DATA = ("*.arrow", "*.feather", "*.hdf5", "*.lmdb", "*.npy", "*.npz", "*.parquet", "*.tfrecord", "*.tfrecords",
        "*.7z", "*.tar", "*.tar.*", "*.tgz", "*.zip")  # fmt: skip
OUTPUTS = ("lightning_logs", "mlruns", "wandb")


def dockerignore(own: Iterable[str] = ()) -> str:
    """Render the .dockerignore. `own` are the lines of the project's own file: they come last, so they win."""
    groups = (
        ("weights: the run folder has them, and they stay on your disk or in your bucket", WEIGHTS),
        ("data: mounted or fetched where the run is, never baked in", DATA),
        ("what earlier runs wrote", OUTPUTS),
        ("secrets: they are given to the run as references", SECRETS),
        ("what no run needs", NEVER),
    )
    lines = ["# Made by Headway. A .dockerignore of your own beside the job file is added below, and wins."]
    for title, patterns in groups:
        lines += ["", f"# {title}", *(f"code/**/{pattern}" for pattern in patterns)]
    mine = [_below_code(line) for line in own if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join([*lines, *(["", "# your own", *mine] if mine else [])]) + "\n"


def left_out(names: Iterable[str]) -> list[str]:
    """Return the code files that stay out because they look like data or weights, for the plan's notes."""
    return [name for name in names if _looks_like_data(name)]


def _looks_like_data(name: str) -> bool:
    *folders, file = name.split("/")
    return any(fnmatch.fnmatch(file, pattern) for pattern in (*WEIGHTS, *DATA)) or bool({*folders} & {*OUTPUTS})


def _below_code(line: str) -> str:
    """Rewrite a line of the project's .dockerignore for a project in `code/`."""
    kept, pattern = ("!", line.strip()[1:]) if line.strip().startswith("!") else ("", line.strip())
    return f"{kept}code/{pattern.lstrip('/')}"
