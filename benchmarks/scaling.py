"""One, two and four ranks: weak scaling (each rank its own rows) and strong scaling (the same rows, shared).

Ranks are processes with one thread each over loopback gloo, and Headway and torch's DDP take turns, one step each. The
upper limit is one rank's rows per second times the number of ranks or cores, whichever is smaller: four ranks on two
cores take turns, and show the cost of one more rank without a free core.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile

from benchmarks.harness import note
from benchmarks.two_ranks import ranks

WIDTH, ROWS, ROUNDS = 512, 256, 40
WORLDS = (1, 2, 4)


def main() -> int:
    return sum(table(kind, shared=kind == "strong") for kind in ("weak", "strong"))


def table(kind: str, *, shared: bool) -> int:
    """Rows a second. What Headway keeps of its own speed of one rank, beside what DDP keeps of the bare loop's."""
    print(f"{kind}: {ROWS} rows a {'step' if shared else 'rank'}\n")
    print("| ranks | Headway, rows/s | of what can be had | DDP, rows/s | of what can be had | Headway ÷ DDP, time |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    alone: tuple[float, float] | None = None
    worst = 0.0
    for world in WORLDS:
        rows = ROWS // world if shared else ROWS
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            ddp, ours = ranks(WIDTH, ROUNDS, folder, world=world, rows=rows)
        speeds = tuple(rows * world / statistics.median(seconds) for seconds in (ours, ddp))
        alone = alone or (speeds[0], speeds[1])
        at_most = min(world, os.cpu_count() or 1)
        kept = [speed / one / at_most for speed, one in zip(speeds, alone, strict=True)]
        ratio = statistics.median(one / other for one, other in zip(ours, ddp, strict=True))
        worst = max(worst, ratio)
        print(f"| {world} | {speeds[0]:,.0f} | {kept[0]:.0%} | {speeds[1]:,.0f} | {kept[1]:.0%} | {ratio:.2f} |")
        for name, speed, one in zip(("Headway", "DDP"), speeds, alone, strict=True):
            note(f"{kind} scaling", f"{name}, {world}", speed, "rows/s", limit="one rank × cores", floor=one * at_most)
    print()
    if worst > 1.05:
        print("more than 5 % over DDP\n")
    return int(worst > 1.05)


if __name__ == "__main__":
    sys.exit(main())
