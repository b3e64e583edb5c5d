"""Logistic regression by stochastic gradient descent, in plain Python: what Headway asks of a script of any framework.

It asks for nothing to be imported. What is written under $HEADWAY_RUN_DIR is kept in the run's folder while the script
runs and at its end; $HEADWAY_RESUME_DIR holds what earlier attempts had kept. On SIGTERM there is time to write once
more; exit code 143 says "start me again". Started by hand, it keeps its files in ./files.
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
    """Whole or not at all: a kill in the middle leaves the one before it."""
    files.mkdir(parents=True, exist_ok=True)
    partial = files / "state.json.part"
    partial.write_text(json.dumps(state))
    partial.replace(files / "state.json")


def load():
    """Also the generator's state: without it the steps after a resume would draw other points."""
    if not (resume / "state.json").exists():
        random.seed(7)
        return {"step": 0, "weights": [0.0, 0.0, 0.0], "dice": random.getstate()}
    state = json.loads((resume / "state.json").read_text())
    version, words, gauss = state["dice"]
    random.setstate((version, tuple(words), gauss))
    print(f"going on from step {state['step']}", flush=True)
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
