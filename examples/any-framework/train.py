"""Logistic regression by stochastic gradient descent, in plain Python: a script of any framework under Headway.

It imports nothing from Headway. Files written under $HEADWAY_RUN_DIR are saved to the run's folder while the script
runs and at its end; $HEADWAY_RESUME_DIR contains the files that earlier attempts saved. After SIGTERM there is time for
a last save; exit code 143 means that the run can be resumed. Started by hand, it saves its files in ./files.
"""

import json
import math
import os
import random
import signal
import sys
from pathlib import Path

STEPS, EVERY = 3000, 100

files = Path(os.environ.get("HEADWAY_RUN_DIR", "files"))
resume = Path(os.environ.get("HEADWAY_RESUME_DIR", files))
asked_to_stop = False


def ask_to_stop(number, frame):
    global asked_to_stop
    asked_to_stop = True


def save(state):
    """Save atomically: after a kill in the middle, the previous file is intact."""
    files.mkdir(parents=True, exist_ok=True)
    partial = files / "state.json.part"
    partial.write_text(json.dumps(state))
    partial.replace(files / "state.json")


def load():
    """Restore the generator's state too: otherwise the steps after a resume would draw other points."""
    if not (resume / "state.json").exists():
        random.seed(7)
        return {"step": 0, "weights": [0.0, 0.0, 0.0], "dice": random.getstate()}
    state = json.loads((resume / "state.json").read_text())
    version, words, gauss = state["dice"]
    random.setstate((version, tuple(words), gauss))
    print(f"resuming from step {state['step']}", flush=True)
    return state


signal.signal(signal.SIGTERM, ask_to_stop)
state = load()
weights = state["weights"]
for step in range(state["step"] + 1, STEPS + 1):
    point = [1.0, random.gauss(0, 1), random.gauss(0, 1)]
    truth = 1.0 if 2 * point[1] - point[2] > 0.5 else 0.0
    guess = 1 / (1 + math.exp(-sum(w * x for w, x in zip(weights, point, strict=True))))
    weights = [w + 0.1 * (truth - guess) * x for w, x in zip(weights, point, strict=True)]
    if step % EVERY == 0 or asked_to_stop:
        save({"step": step, "weights": weights, "dice": random.getstate()})
        print(f"step {step}: weights {' '.join(f'{w:.3f}' for w in weights)}", flush=True)
    if asked_to_stop:
        sys.exit(143)

(files / "model.json").write_text(json.dumps({"weights": weights}))
