"""Fit a rent by scikit-learn, in passes over the table; continues from its file if there is one."""

import csv
import os
import pathlib
import sys
import time

import joblib
import numpy as np
from sklearn.linear_model import SGDRegressor

passes = int(sys.argv[1]) if len(sys.argv) > 1 else 6
rows = list(csv.DictReader(open("train.csv")))
x = np.array([[float(row["rooms"]), float(row["area"]) / 30, row["heating"] == "gas"] for row in rows])
y = np.array([float(row["rent"]) for row in rows])
path = pathlib.Path("model.joblib")
done, model = (
    joblib.load(path) if path.exists() else (0, SGDRegressor(learning_rate="constant", eta0=0.01, random_state=0))
)
print(f"begins at pass {done}", flush=True)
while done < passes:
    model.partial_fit(x, y)
    done += 1
    joblib.dump((done, model), "model.new")
    os.replace("model.new", path)
    print(f"pass {done} loss: {float(((model.predict(x) - y) ** 2).mean()):.4f}", flush=True)
    while done == 3 and "GATE" in os.environ and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
