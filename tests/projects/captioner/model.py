import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.encode = nn.Linear(8, 16)
        self.embed = nn.Embedding(words, 16)
        self.lstm = nn.LSTM(32, 16, batch_first=True)
        self.decode = nn.Linear(16, words)

    def forward(self, pixels, target):
        picture = self.encode(pixels).expand(len(target), -1)
        before = self.embed(torch.cat([torch.zeros(1, dtype=torch.long), target[:-1]]))
        hidden, _ = self.lstm(torch.cat([picture, before], dim=1)[None])
        return self.decode(hidden[0])
