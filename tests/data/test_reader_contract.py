"""The contract of readers, kept by one for texts and one for pictures."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from headway.testing import ReaderContract


class TestParallel(ReaderContract):
    name = "parallel"

    def write_sample(self, folder: Path) -> int:
        (folder / "train.en").write_text("".join(f"{n} dogs\n" for n in range(40)))
        (folder / "train.de").write_text("".join(f"{n} Hunde\n" for n in range(40)))
        return 40


class TestTable(ReaderContract):
    name = "table"

    def write_sample(self, folder: Path) -> int:
        lines = ["file,class"]
        for number in range(12):
            Image.new("RGB", (40, 40), (number * 20, 90, 160)).save(folder / f"{number}.png")
            lines.append(f"{number}.png,{'even' if number % 2 == 0 else 'odd'}")
        (folder / "pictures.csv").write_text("\n".join(lines) + "\n")
        return 12
