"""Benchmarks are scripts, not a package, so they are imported from their folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
