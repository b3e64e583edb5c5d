"""Which quarter of the plane does a point lie in? The plain loop of before.py, and five lines of Headway."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headway

EPOCHS = 8

run = headway.start()  # 1: seeds all random generators, handles signals
points = torch.randn(1000, 2, generator=torch.Generator().manual_seed(1))
quarter = (points[:, 0] > 0).long() * 2 + (points[:, 1] > 0).long()
loader = DataLoader(TensorDataset(points, quarter), batch_size=50, shuffle=True)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
run.restore(model=model, optimizer=optimizer, schedule=schedule)  # 2: the newest good checkpoint, or a fresh start

for epoch in run.epochs(EPOCHS):  # 3: the remaining ones
    for x, y in run.steps(loader):  # 4: the remaining ones, with checkpoints in between
        model.train()
        loss = nn.functional.cross_entropy(model(x), y)
        run.step(loss, optimizer, scheduler=schedule)  # 5: instead of zero_grad, backward, step and step
    model.eval()
    print(f"epoch {epoch + 1}: {(model(points).argmax(1) == quarter).float().mean():.1%} right")
