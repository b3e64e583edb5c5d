"""`python -m benchmarks [--record] [NAME …]`: run all benchmarks, or those named.

`--record` saves their output in docs/benchmarks.json and rewrites docs/benchmarks.md, with plots.
"""

from __future__ import annotations

import contextlib
import io
import pkgutil
import sys
from importlib import import_module

import benchmarks
from benchmarks import harness, page
from benchmarks.harness import machine

NOT_A_BENCHMARK = {"__main__", "harness", "page"}


class Tee(io.StringIO):
    """Write output to the terminal and keep a copy."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return super().write(text)


def main() -> int:
    words = sys.argv[1:]
    record = "--record" in words
    chosen = [word for word in words if word != "--record"]
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in NOT_A_BENCHMARK)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; choose from: {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"# {machine()}")
    failed = 0
    for name in chosen or known:
        module = import_module(f"benchmarks.{name}")
        print(f"\n## {name}\n\n{(module.__doc__ or '').strip()}\n", flush=True)
        harness.NOTED.clear()
        said = Tee()
        with contextlib.redirect_stdout(said):
            broken = bool(module.main())
        failed += broken
        if record:
            page.keep(name, module.__doc__ or "", said.getvalue(), harness.NOTED, broken=broken)
    if record:
        page.write()
    return failed


sys.exit(main())
