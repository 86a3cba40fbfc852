"""Lets these tests import `world.py`, which stands beside this file, and gives each a world of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import toy_model
from endpoint import Endpoint
from world import World


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(respond=toy_model.respond) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, endpoint: Endpoint) -> World:
    return World(tmp_path, endpoint)
