"""How long the training of the workload is and what it exports: known without importing torch."""

from __future__ import annotations

EPOCHS, ITEMS, BATCH = 12, 70, 8  # the last batch of an epoch has six items
STEPS_AN_EPOCH = 9
FILES = ("card.md", "config.json", "model.safetensors")
