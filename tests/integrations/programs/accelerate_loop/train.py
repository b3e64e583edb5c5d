"""A loop of Accelerate, with Headway's lines."""

import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from headway.integrations.accelerate import resume

EPOCHS = 4

set_seed(0)
points = torch.randn(320, 4)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.Adam(model.parameters(), lr=0.01),
    DataLoader(TensorDataset(points, points.sum(1)), batch_size=16, shuffle=True),
)
progress = resume(accelerator, save_every_s=0.5)
for epoch in range(progress.step // len(loader), EPOCHS):
    loader.set_epoch(epoch)
    for inputs, target in accelerator.skip_first_batches(loader, progress.step % len(loader)):
        loss = (model(inputs)[:, 0] - target).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if not progress.step_done(EPOCHS * len(loader), loss=loss.item()):
            break
    print(f"epoch {epoch + 1}/{EPOCHS}", flush=True)
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
