"""`python -m benchmarks [NAME …]`: run all benchmarks, or those named."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

import benchmarks
from benchmarks.harness import machine

NOT_A_BENCHMARK = {"__main__", "harness"}


def main() -> int:
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in NOT_A_BENCHMARK)
    chosen = sys.argv[1:] or known
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"# {machine()}")
    failed = 0
    for name in chosen:
        module = import_module(f"benchmarks.{name}")
        print(f"\n## {name}\n\n{(module.__doc__ or '').strip()}\n", flush=True)
        failed += bool(module.main())
    return failed


sys.exit(main())
