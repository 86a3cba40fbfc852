"""Entry point. See `python benchmarks/endpoint --help`."""

import sys
from pathlib import Path

if __package__:
    from .main import main
else:  # For running the folder.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.endpoint.main import main

sys.exit(main(sys.argv[1:]))
