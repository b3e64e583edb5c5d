"""`python -m headway.data.scenes FOLDER`: a few drawn scenes as PNG files, with what may be said of them as JSON."""

from __future__ import annotations

import argparse

from headway.data.scenes import write_examples

parser = argparse.ArgumentParser(prog="python -m headway.data.scenes", description=__doc__)
parser.add_argument("folder")
parser.add_argument("--count", type=int, default=8)
given = parser.parse_args()
write_examples(given.folder, given.count)
