"""How long the training of the workload is and what it exports: known without importing torch."""

from __future__ import annotations

EPOCHS, ITEMS, BATCH = 12, 70, 8  # nine steps an epoch, the last one of six items
STEPS = EPOCHS * 9
FILES = ("card.md", "config.json", "model.safetensors")
