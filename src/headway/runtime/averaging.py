"""A running average of the weights, which often scores better than they do. Costs one pass over them a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headway.errors import BadInput


class Average:
    """Exponential moving average of a module's parameters. Early on it follows faster, or it would remember noise."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise BadInput(f"the decay of an average is {decay}", fix="choose a number from 0 up to, but not, 1")
        self._model, self._decay, self._steps = model, decay, 0
        self._shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """By the names of the module's parameters."""
        return self._shadow

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step."""
        self._steps += 1
        decay = min(self._decay, self._steps / (self._steps + 10))
        parameters = [parameter.detach() for parameter in self._model.parameters()]
        torch._foreach_lerp_(list(self._shadow.values()), parameters, 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model has the average's weights: for evaluation and export. Not for training."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._model.named_parameters():
            mine = self._shadow[name]
            kept = parameter.detach().clone()
            parameter.copy_(mine)
            mine.copy_(kept)

    def state_dict(self) -> dict[str, object]:
        return {"steps": self._steps, "weights": dict(self._shadow)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        weights = state["weights"]
        assert isinstance(weights, Mapping)
        if weights.keys() != self._shadow.keys():
            odd = sorted(weights.keys() ^ self._shadow.keys())
            raise BadInput(f"the average was of another model: {', '.join(odd[:5])} differ")
        for name, mine in self._shadow.items():
            value = weights[name]
            assert isinstance(value, Tensor)
            mine.copy_(value)
        self._steps = int(str(state["steps"]))
