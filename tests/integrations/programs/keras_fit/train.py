"""Model.fit of Keras 3, without a line for checkpoints."""

import os
import time

import keras
import numpy as np

keras.utils.set_random_seed(0)
points = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")


def show(epoch, logs):
    print(f"epoch {epoch + 1}/4", flush=True)
    time.sleep(float(os.environ.get("EPOCH_S", "0")))


model.fit(
    points,
    points.sum(1),
    epochs=4,
    batch_size=16,
    verbose=0,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=show)],
)
model.save("model.keras")
