"""A two-layer perceptron as a dictionary of arrays."""

import jax
import jax.numpy as jnp


def init(key, width=32):
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (2, width)) * 0.5,
        "bias": jnp.zeros(width),
        "out": jax.random.normal(second, (width, 1)) * 0.1,
    }


def loss(params, points, labels):
    logits = (jnp.tanh(points @ params["hidden"] + params["bias"]) @ params["out"])[:, 0]
    return jnp.mean(jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits))))
