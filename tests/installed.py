"""A package as `pip install --target` leaves it: its modules, and their metadata."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

SAMPLE = Path(__file__).parent / "sample_plugin"


def install(target: Path, project: Path = SAMPLE) -> Path:
    """Install a project that has a `pyproject.toml` and no dependencies. Returns `target`, for sys.path."""
    told = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    for package in told["tool"]["setuptools"]["packages"]:
        shutil.copytree(project / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    name, version = told["project"]["name"], told["project"]["version"]
    metadata = target / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    groups = told["project"]["entry-points"].items()
    lines = [line for group, of in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in of.items()))]
    (metadata / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return target
