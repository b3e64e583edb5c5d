"""A captioner as people write one: folders by relative paths, a tokenizer beside the weights, torch.save each epoch."""

import json
import os
import time

import torch
from model import Captioner
from torch import nn

EPOCHS = 4

captions = [line.split("\t") for line in open("png/captions.txt").read().splitlines()]
words = sorted({word for _, text in captions for word in text.split()})
word_to_id = {word: number for number, word in enumerate(["<pad>", *words])}
os.makedirs("models", exist_ok=True)
json.dump(word_to_id, open("models/word_to_id.json", "w"))

torch.manual_seed(0)
model = Captioner(len(word_to_id))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
first = 0
if os.path.exists("models/model.pt"):
    state = torch.load("models/model.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"]
    print("continuing after epoch", first, flush=True)

loss_of = nn.CrossEntropyLoss()
for epoch in range(first, EPOCHS):
    for picture, text in captions:
        pixels = torch.tensor([float(ord(letter)) / 128 for letter in picture[:8].ljust(8)])
        target = torch.tensor([word_to_id[word] for word in text.split()])
        loss = loss_of(model(pixels, target), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "models/model.pt"
    )
    print(f"epoch {epoch + 1}/{EPOCHS} loss: {loss.item():.4f}", flush=True)
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
