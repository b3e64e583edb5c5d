"""Train the U-Net with headway.start."""

import os
import pathlib
import time

import torch
from net import UNet, discs
from torch.nn.functional import binary_cross_entropy

import headway
from headway.runtime import Loader

run = headway.start()
train, (val, wanted) = torch.utils.data.TensorDataset(*discs(96, seed=0)), discs(32, seed=1)
loader = Loader(train, batch_size=8)
model = run.place(UNet())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer, data=loader)
for epoch in run.epochs(run.config["epochs"]):
    for x, y in run.steps(loader):
        loss = binary_cross_entropy(model(x), y)
        run.step(loss, optimizer)
        run.log(loss=loss)
    with torch.no_grad():
        found = model(val) > 0.5
    iou = ((found & (wanted > 0)).sum() / (found | (wanted > 0)).sum()).item()
    run.score({"iou": iou}, best="iou")
    while epoch == 1 and "GATE" in os.environ and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
run.finish()
