"""How long the command line takes to answer, as a multiple of an empty Python. Promised: help 4 ×, plan 20 ×."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import interleave, show

PROMISES = {"headway --help": 4.0, "headway plan": 20.0}
REPEATS = 21


def main() -> int:
    headway = Path(sys.executable).with_name("headway")
    with tempfile.TemporaryDirectory() as folder:
        # As an ordinary user's machine is: with compiled bytecode kept from the first start on.
        env = {**os.environ, "HEADWAY_HOME": f"{folder}/home", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([headway, "init", "captioning"], cwd=folder, env=env, check=True, capture_output=True)

        def command(*words: object):  # type: ignore[no-untyped-def]
            return lambda: subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True)

        cases = {
            "python -c pass": command(sys.executable, "-c", "pass"),
            "headway --help": command(headway, "--help"),
            "headway plan": command(headway, "plan"),
            "headway ps": command(headway, "ps"),
        }
        rows = interleave(cases, REPEATS)
    print(show(rows, "python -c pass"))
    base = rows[0].median
    broken = [row.name for row in rows if row.median / base > PROMISES.get(row.name, float("inf"))]
    for name in broken:
        print(f"\nbroken promise: {name} is over {PROMISES[name]:.0f} ×")
    return len(broken)


if __name__ == "__main__":
    sys.exit(main())
