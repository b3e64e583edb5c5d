"""`python -m headway.data.cards FOLDER --count N`: drawn cards as PNG files, with splits.json."""

from __future__ import annotations

import argparse
import sys

from headway.data.cards import EVEN, SKEWED, write_pairs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.data.cards", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100, help="in all: eight of ten to train on (default: 100)")
    parser.add_argument("--skewed", action="store_true", help="few low grades and many high ones, as in real life")
    args = parser.parse_args()
    tenth = max(1, args.count // 10)
    counts = {"train": max(1, args.count - 2 * tenth), "val": tenth, "test": tenth}
    write_pairs(args.folder, counts, shares=SKEWED if args.skewed else EVEN)
    sys.stdout.write(f"{args.folder}/splits.json\n")


if __name__ == "__main__":
    main()
