"""Keras on several workers by MultiWorkerMirroredStrategy, which reads the cluster from TF_CONFIG: Headway sets it.

Keras' own BackupAndRestore keeps model, optimizer and epoch under $HEADWAY_RUN_DIR, which the run's folder mirrors: a
killed run continues with the epoch that it was in. Keras 3 cannot `fit` under this strategy, so the job asks for Keras 2
by TF_USE_LEGACY_KERAS=1.
"""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

EPOCHS, BATCH = 5, 64  # over all workers together

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other TensorFlow call: it opens the connections
index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
chief = index == 0
print(f"worker {index} of {strategy.num_replicas_in_sync}", flush=True)

tf.keras.utils.set_random_seed(7)
points = np.random.default_rng(1).normal(size=(4096, 2)).astype("float32")
quarter = ((points[:, 0] > 0) * 2 + (points[:, 1] > 0)).astype("int64")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((points, quarter)).shuffle(len(points), seed=7).batch(BATCH).repeat()

with strategy.scope():
    layers = [tf.keras.layers.Dense(32, "relu", input_shape=(2,)), tf.keras.layers.Dense(4)]
    model = tf.keras.Sequential(layers)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

files = Path(os.environ.get("HEADWAY_RUN_DIR", "files"))
model.fit(
    data.with_options(options),
    epochs=EPOCHS,
    steps_per_epoch=len(points) // BATCH,
    verbose=2 if chief else 0,
    callbacks=[tf.keras.callbacks.BackupAndRestore(str(files / "backup"))],
)

# All workers must save, because saving reads shared variables; only the chief's copy is kept.
with tempfile.TemporaryDirectory() as elsewhere:
    model.save(files / "model" if chief else Path(elsewhere, "model"))
