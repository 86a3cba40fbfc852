"""Being a job that was submitted to a cluster. Does not import Ray, which takes a second."""

from __future__ import annotations

import os

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray for submitted jobs: what they were submitted with."""


def submitted() -> bool:
    """Whether this process is one: few see what it prints, or its exit code."""
    return JOB_CONFIG in os.environ
