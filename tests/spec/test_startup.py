"""Loading a job file stays light: a laptop plans without the libraries that train."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "numpy", "jsonschema", "rich", "pydantic", "obstore", "PIL", "safetensors", "asyncio"}


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_loading_a_job_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "headway.yaml"
    path.write_text("name: x\nrecipe: captioning\nconfig: {epochs: 3}\n")
    loaded = modules_after(f"import headway; headway.Job.load({str(path)!r}, set=['seed=5'])")
    assert {"yaml", "headway.recipes.captioning.config"} <= loaded
    assert not loaded & HEAVY
    assert not loaded & {"headway.spec.schema"}, "only what is generated needs these"


def test_who_only_needs_the_nouns_does_not_pay_for_yaml() -> None:
    assert not modules_after("from headway.spec import Job, dump; dump(Job(name='x'))") & {"yaml", "difflib", *HEAVY}
