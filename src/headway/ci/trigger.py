"""Which jobs a commit message asks for: `!train!`, or `!train-NAME!`. Pure text in, checked names out.

Nothing else of a message is ever used, and nothing of it reaches a shell: pipelines hand it over in a variable. Needs
only Python itself, so that it runs from our wheel without being installed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

MESSAGE = "HEADWAY_MESSAGE"
LONGEST = 40
_WORD = re.compile(rf"(?<![!\w])!train(?:-(?P<name>[a-z0-9](?:[a-z0-9-]{{0,{LONGEST - 2}}}[a-z0-9])?))?!(?![!\w])")
# What is quoted is spoken of, not asked for: a revert of a commit that trained must not train again.
_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|^[ \t]*>.*$|^[ \t]*#.*$", re.DOTALL | re.MULTILINE
)


def asked(message: str) -> list[str]:
    """The names in order, each once; an empty one means the repository's only job."""
    plain = _QUOTED.sub(" ", message[:100_000])
    return list(dict.fromkeys(found["name"] or "" for found in _WORD.finditer(plain)))


def job_files(message: str, root: Path) -> list[str]:
    """The job files that are asked for. A name that belongs to none of the repository's files is an error."""
    return [_file(name, root) for name in asked(message)]


def _file(name: str, root: Path) -> str:
    places = [f"{folder}{name}.yaml" for folder in ("", "jobs/", "examples/")] if name else ["headway.yaml"]
    for place in places:
        path = root / place
        if path.is_file() and path.resolve().is_relative_to(root.resolve()):
            return place
    raise SystemExit(f"headway: the commit asks for !train{'-' + name if name else ''}!, and there is no {places[0]}")


def main(env: Mapping[str, str] = os.environ, root: Path | None = None) -> int:
    """Prints `jobs=[…]`: for $GITHUB_OUTPUT, or a dotenv file."""
    files = job_files(env.get(MESSAGE) or env.get("CI_COMMIT_MESSAGE") or "", root or Path.cwd())
    sys.stdout.write(f"jobs={json.dumps(files)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
