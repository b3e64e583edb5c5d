"""Find the jobs that a commit message requests with `!train!` or `!train-NAME!`.

Only checked names leave this module, and no part of a message reaches a shell: pipelines pass it in a variable.
Standard library only, so that it runs from our wheel without being installed.
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
# Ignore quoted text: a revert of a commit that trained must not train again.
_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|^[ \t]*>.*$|^[ \t]*#.*$", re.DOTALL | re.MULTILINE
)


def asked(message: str) -> list[str]:
    """Return the requested names in order, without duplicates; an empty name means the repository's only job."""
    plain = _QUOTED.sub(" ", message[:100_000])
    return list(dict.fromkeys(found["name"] or "" for found in _WORD.finditer(plain)))


def job_files(message: str, root: Path) -> list[str]:
    """Return the requested job files. Exits with an error for a name without a job file."""
    return [_file(name, root) for name in asked(message)]


def _file(name: str, root: Path) -> str:
    places = [f"{folder}{name}.yaml" for folder in ("", "jobs/", "examples/")] if name else ["headway.yaml"]
    for place in places:
        path = root / place
        if path.is_file() and path.resolve().is_relative_to(root.resolve()):
            return place
    raise SystemExit(f"headway: the commit asks for !train{'-' + name if name else ''}!, and there is no {places[0]}")


def main(env: Mapping[str, str] = os.environ, root: Path | None = None) -> int:
    """Print `jobs=[…]`, for $GITHUB_OUTPUT or a dotenv file."""
    files = job_files(env.get(MESSAGE) or env.get("CI_COMMIT_MESSAGE") or "", root or Path.cwd())
    sys.stdout.write(f"jobs={json.dumps(files)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
