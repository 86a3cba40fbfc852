"""Lets tests import the helpers that stand beside this file (`from endpoint import Endpoint`)."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = HERE  # for the workers of a Ray cluster that a test starts

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def on_ray() -> Iterator[None]:
    """A real Ray cluster of this machine, for the whole session."""
    from graphrag_ray.distributed.cluster import connected

    with connected():
        yield
