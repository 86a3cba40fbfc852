"""The helper that detects super-linear run time."""

from linear_time import too_slow


def linear(items: list[int]) -> int:
    return sum(x * x % 7 for x in items)


def quadratic(items: list[int]) -> int:
    return sum(1 for x in items for y in items if x < y)


def with_a_limit(items: list[int]) -> int:
    """A search that only inputs of more than 1,000 items need, up to a fixed size."""
    return quadratic(items[:1_500]) if len(items) > 1_000 else linear(items)


def make(n: int) -> list[int]:
    return list(range(n))


def test_linear_code_passes() -> None:
    assert too_slow(linear, make, 20_000) == ""


def test_quadratic_code_is_detected() -> None:
    assert "times that of a quarter" in too_slow(quadratic, make, 1_200)


def test_a_single_step_is_not_growth() -> None:
    assert too_slow(with_a_limit, make, 500) == ""
