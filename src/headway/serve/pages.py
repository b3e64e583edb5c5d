"""Where the files of the try-out page lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = STATIC / "index.html"
