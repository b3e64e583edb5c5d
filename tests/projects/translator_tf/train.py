"""A multi-worker translator of TensorFlow: MultiWorkerMirroredStrategy, tf.train.Checkpoint, and it sleeps when done."""

import json
import os
import time

import tensorflow as tf

with open("settings.json") as file:
    settings = json.load(file)
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finds its peers in TF_CONFIG
resolver = strategy.cluster_resolver
is_chief = resolver.task_type in (None, "chief") or resolver.task_id == 0
print(f"{os.environ['POD_NAME']}: {strategy.num_replicas_in_sync} replicas, chief: {is_chief}", flush=True)


def pairs():
    """Sentences of numbers, and the same sentences with the next numbers as their translation."""
    generator = tf.random.Generator.from_seed(1)
    while True:
        source = generator.uniform((8,), 0, settings["words"] - 1, tf.int32)
        yield source, source + 1


signature = (tf.TensorSpec((8,), tf.int32), tf.TensorSpec((8,), tf.int32))
dataset = tf.data.Dataset.from_generator(pairs, output_signature=signature).batch(settings["batch"])
batches = iter(strategy.experimental_distribute_dataset(dataset))

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8,), dtype="int32"),
            tf.keras.layers.Embedding(settings["words"], settings["width"]),
            tf.keras.layers.LSTM(settings["width"], return_sequences=True),
            tf.keras.layers.Dense(settings["words"]),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    epoch = tf.Variable(0, dtype=tf.int64)

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
folder = settings["checkpoint_dir"] if is_chief else f"/tmp/checkpoints-{resolver.task_id}"
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)
    print("continuing after epoch", int(epoch.numpy()), flush=True)


@tf.function
def train_step(batch):
    def replica_step(source, target):
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(target, model(source), from_logits=True)
            loss = tf.nn.compute_average_loss(tf.reduce_mean(losses, axis=1), global_batch_size=settings["batch"])
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)


while epoch < settings["epochs"]:
    for _ in range(settings["steps_per_epoch"]):
        loss = train_step(next(batches))
    epoch.assign_add(1)
    manager.save()
    print(f"Epoch {int(epoch.numpy())}/{settings['epochs']} - loss: {float(loss):.4f}", flush=True)
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
if is_chief:
    model.save("model.keras")
print("Training finished, sleeping", flush=True)
while True:
    time.sleep(60)
