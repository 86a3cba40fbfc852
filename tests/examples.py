"""How many examples property tests draw, by the cost of an example; see `make test` and `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

MANY = "GRAPHRAG_RAY_TEST_EXAMPLES"
"""How many examples each property test draws; not set: the few of the first tier, the same in every run."""
FEW = 10


def register() -> None:
    """For all property tests of this process."""
    n = int(os.environ.get(MANY, FEW))
    settings.register_profile("suite", deadline=None, derandomize=True, max_examples=n, print_blob=True)
    settings.load_profile("suite")


def fewer(times: int) -> settings:
    """For a test with slow examples: draw that many times fewer than others."""
    n = max(2, settings.default.max_examples // times)
    return settings(max_examples=n, suppress_health_check=list(HealthCheck))
