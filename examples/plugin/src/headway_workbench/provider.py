"""Rent machines from a company that has a command line: `garage`."""

from __future__ import annotations

from headway.core.errors import BadInput
from headway.core.types import MachineProvider, RentalCommands

USD_PER_HOUR = {"small": 0.2, "big": 1.6}


class Garage(MachineProvider):
    def commands(self, machine):
        kind = machine.get("type")
        if kind not in USD_PER_HOUR:
            raise BadInput(f"garage has no machine {kind!r}", fix=f"machine: {{type: {' or '.join(USD_PER_HOUR)}}}")
        return RentalCommands(
            up=f"garage rent {kind} --count $HEADWAY_NODES --label {{run}}",
            down="garage return {id}",
            list="garage list --label {run}",
            price=USD_PER_HOUR[kind],
        )
