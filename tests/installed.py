"""Install the sample package with pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLE = Path(__file__).parent / "sample_plugin"


def install(target: Path, project: Path = SAMPLE) -> Path:
    """Install a project without its dependencies into a folder. Returns `target`, for sys.path."""
    with tempfile.TemporaryDirectory() as folder:
        # A build writes to the folder of the project, and several tests may build concurrently.
        copied = shutil.copytree(project, Path(folder) / "project")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", str(target), str(copied)], check=True, timeout=300)
    return target
