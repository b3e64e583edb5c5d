"""How long the command line takes to respond, as a multiple of an empty Python. Promised: help 4 ×, plan 20 ×.

torchx, dstack, SkyPilot and Metaflow run `--help` (Metaflow: `help`) from separate environments, all with bytecode
compiled at the first start. `headway plan` resolves a job, its data, its code and its cost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Absent, environment, interleave, note, show

PROMISES = {"headway --help": 4.0, "headway plan": 20.0}
REPEATS = 15
RIVALS = {
    "torchx --help": ("torchx", "torchx", "--help"),
    "dstack --help": ("dstack", "dstack", "--help"),
    "sky --help": ("skypilot", "sky", "--help"),
    "metaflow help": ("metaflow", "metaflow", "help"),
}


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
        for name, (package, program, word) in RIVALS.items():
            try:
                path = environment(f"cli-start/{package}", package, share=False).with_name(program)
                subprocess.run([path, word], cwd=folder, env=env, check=True, capture_output=True, timeout=60)
            except (Absent, subprocess.SubprocessError, OSError) as error:
                print(f"{name} takes no part: {str(error)[:160]}\n")
            else:
                cases[name] = command(path, word)
        rows = interleave(cases, REPEATS)
    print(show(rows, "python -c pass"))
    base = rows[0].median
    for row in rows[1:]:
        limit = {"limit": "an empty Python", "floor": base * 1e3} if row.name.startswith("headway") else {}
        group = "asked for help" if row.name.endswith("help") else "with work to do"
        note(group, row.name, row.median * 1e3, "ms", **limit)  # type: ignore[arg-type]
    broken = [row.name for row in rows if row.median / base > PROMISES.get(row.name, float("inf"))]
    for name in broken:
        print(f"\nbroken promise: {name} is over {PROMISES[name]:.0f} ×")
    return len(broken)


if __name__ == "__main__":
    sys.exit(main())
