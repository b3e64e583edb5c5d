"""A language model of letters: a GRU over the bytes of a text."""

import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.seen, self.reads, self.writes = (
            nn.Embedding(128, width),
            nn.GRU(width, width, batch_first=True),
            nn.Linear(width, 128),
        )

    def forward(self, letters, state=None):
        found, state = self.reads(self.seen(letters), state)
        return self.writes(found), state


def letters_of(text):
    return torch.tensor([[min(ord(letter), 127) for letter in text]])
