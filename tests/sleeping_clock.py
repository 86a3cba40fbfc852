"""A clock that advances only by sleeping, for the writer lock."""

from unittest.mock import patch

from graphrag_ray.store import locks


class Clock:
    """Calls `each` at every sleep."""

    def __init__(self, each=lambda: None):
        self.seconds, self.each = 0.0, each

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        self.each()

    def passes(self):
        return patch.multiple(locks, _clock=self, _sleep=self.sleep)
