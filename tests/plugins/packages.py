"""Install packages with entry points, as pip leaves them: modules and a dist-info folder beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path,
    name: str,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    version: str = "0.1",
) -> None:
    """Write a package's modules and metadata into a folder that is then on the path."""
    for module, text in modules.items():
        path = site / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        f"[headway.{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
