"""Which quarter of the plane does a point lie in? A plain PyTorch loop: after a kill, it starts over."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8

points = torch.randn(1000, 2, generator=torch.Generator().manual_seed(1))
quarter = (points[:, 0] > 0).long() * 2 + (points[:, 1] > 0).long()
loader = DataLoader(TensorDataset(points, quarter), batch_size=50, shuffle=True)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))

for epoch in range(EPOCHS):
    for x, y in loader:
        model.train()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    print(f"epoch {epoch + 1}: {(model(points).argmax(1) == quarter).float().mean():.1%} right")
