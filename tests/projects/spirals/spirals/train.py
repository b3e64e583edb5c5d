"""`python -m spirals.train --workdir out`: plain JAX, one jitted step, parameters in a .npz file after each epoch."""

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from spirals import model

EPOCHS, STEPS, BATCH, RATE = 4, 50, 32, 0.5


def dataset(key, points=512):
    angle, noise, label = jax.random.split(key, 3)
    labels = jax.random.bernoulli(label, shape=(points,)).astype(jnp.float32)
    turns = jax.random.uniform(angle, (points,)) * 6
    spiral = jnp.stack([jnp.cos(turns + labels * jnp.pi), jnp.sin(turns + labels * jnp.pi)], axis=1) * turns[:, None]
    return spiral / 6 + jax.random.normal(noise, (points, 2)) * 0.02, labels


@jax.jit
def step(params, points, labels):
    loss, gradients = jax.value_and_grad(model.loss)(params, points, labels)
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, params, gradients), loss


def save(path, params, epoch):
    half = path.with_suffix(".new.npz")
    np.savez(half, epoch=epoch, **params)
    os.replace(half, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", type=Path, required=True)
    workdir = parser.parse_args().workdir
    workdir.mkdir(parents=True, exist_ok=True)
    points, labels = dataset(jax.random.key(0))
    params, first = model.init(jax.random.key(1)), 0
    checkpoint = workdir / "checkpoint.npz"
    if checkpoint.exists():
        restored = dict(np.load(checkpoint))
        first = int(restored.pop("epoch"))
        params = {name: jnp.asarray(value) for name, value in restored.items()}
        print("continuing after epoch", first, flush=True)
    for epoch in range(first, EPOCHS):
        for key in jax.random.split(jax.random.fold_in(jax.random.key(2), epoch), STEPS):
            chosen = jax.random.choice(key, len(points), (BATCH,))
            params, loss = step(params, points[chosen], labels[chosen])
        save(checkpoint, params, epoch + 1)
        print(f"epoch {epoch + 1}/{EPOCHS} loss: {float(loss):.4f}", flush=True)
        time.sleep(float(os.environ.get("EPOCH_S", "0")))
    np.savez(workdir / "model.npz", **params)


if __name__ == "__main__":
    main()
