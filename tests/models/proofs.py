"""Copies of the projects in this folder: programs with models that are no recipes, with a class for the verbs."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

RHYME = "twinkle twinkle little star how i wonder what you are up above the world so high\n"


def copy_project(name: str, to: Path) -> Path:
    """Copy a project with its data into a folder, and return that."""
    shutil.copytree(Path(__file__).parent / name, to, dirs_exist_ok=True)
    if name == "rows":
        write_rents(to / "train.csv", 200, seed=0)
        write_rents(to / "test.csv", 60, seed=1)
    if name == "letters":
        (to / "rhyme.txt").write_text(RHYME)
    return to


def write_rents(path: Path, count: int, seed: int) -> None:
    made = random.Random(seed)
    lines = ["rooms,area,heating,rent"]
    for _ in range(count):
        rooms, heating = made.randint(1, 5), made.choice(["gas", "oil"])
        area = 20 * rooms + made.randint(0, 20)
        lines.append(f"{rooms},{area},{heating},{2 * rooms + area / 10 + (heating == 'gas') + made.gauss(0, 0.3):.3f}")
    path.write_text("\n".join(lines) + "\n")
