"""Train the letters on a rhyme, in a plain loop that saves a file and continues from it."""

import os
import pathlib
import time

import torch
from net import Letters, letters_of

text = letters_of(pathlib.Path("rhyme.txt").read_text())
path, model = pathlib.Path("out/letters.pt"), Letters()
optimizer, first = torch.optim.Adam(model.parameters(), lr=0.02), 0
if path.exists():
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
print(f"begins at step {first}", flush=True)
path.parent.mkdir(exist_ok=True)
for step in range(first, 60):
    loss = torch.nn.functional.cross_entropy(model(text[:, :-1])[0][0], text[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "out/new")
    os.replace("out/new", path)
    print(f"step {step + 1} loss: {loss.item():.4f}", flush=True)
    while step == 30 and "GATE" in os.environ and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
