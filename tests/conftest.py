"""Lets tests import the helpers that stand beside this file (`from endpoint import Endpoint`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
