"""A script whose result depends on every step it ever took: gone on wrongly, its digest is another. Needs no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headway.launcher.lifecycle import RunHandle

COUNT = "count.py"
# Arguments: steps, seconds for each, and at which step the first, second, … attempt waits until it is asked to stop, or
# until there is a file: nobody then need hurry to stop it in the middle.
SCRIPT = """\
import hashlib, json, os, pathlib, signal, sys, time

steps, pause, waits, gate = [*sys.argv[1:5], "", ""][:4]
attempt = int(os.environ["HEADWAY_ATTEMPT"])
waits = [int(step) for step in waits.split(",") if step]
state = pathlib.Path(os.environ["HEADWAY_RUN_DIR"]) / "state.json"
step, digest = json.loads(state.read_text()) if state.exists() else (0, "")
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
while step < int(steps):
    time.sleep(float(pause))
    step += 1
    digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    print(f"counted {step} {digest[:8]}", flush=True)
    while waits[attempt - 1 : attempt] == [step] and not asked and not (gate and os.path.exists(gate)):
        time.sleep(0.02)
    if asked and step < int(steps):
        state.write_text(json.dumps([step, digest]))
        sys.exit(143)
print(f"digest {digest}", flush=True)
"""


def write_counting(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COUNT).write_text(SCRIPT)
    (folder / "requirements.txt").write_text("")  # for plans that name one: it needs nothing
    return folder


def count_to(steps: int) -> list[str]:
    """What an unbroken run prints."""
    lines, digest = [], ""
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
        lines.append(f"counted {step} {digest[:8]}")
    return [*lines, f"digest {digest}"]


def counted(hold: RunHandle) -> list[str]:
    """Every step that was taken, in order, over all attempts, and the digest of them all."""
    return [line.text for line in hold.logs(rank=0) if line.text.startswith(("counted", "digest", "edited"))]


WRITE = "write.py"
# Knows nothing of Headway: it saves below its working folder, and loads that when it is started again.
WRITING = """\
import pathlib, signal, sys, time

def resume(path):
    return int(path.read_text()) if path.exists() else 0

models = pathlib.Path("models", "deep")
models.mkdir(parents=True, exist_ok=True)
step = resume(models / "model.pt")
print(f"from {step}", flush=True)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
(models / "model.pt").write_text(str(step + 5))
pathlib.Path("log.csv").open("a").write(f"{step}\\n")
pathlib.Path("settings.txt").write_text("changed")
print("waits", flush=True)
while step == 0:
    time.sleep(0.02)
"""


def write_writing(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WRITE).write_text(WRITING)
    (folder / "settings.txt").write_text("as it came")
    (folder / "untouched.txt").write_text("as it came")
    (folder / "requirements.txt").write_text("")
    return folder
