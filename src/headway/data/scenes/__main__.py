"""`python -m headway.data.scenes FOLDER --count N`: held-out scenes as PNG files, with what may be said of them."""

from __future__ import annotations

import argparse
import sys

from headway.data.scenes import write_examples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.data.scenes", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=8)
    args = parser.parse_args()
    for path in write_examples(args.folder, args.count):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
