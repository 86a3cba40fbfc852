"""Explain errors of the YAML parser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphrag_ray.base.errors import SettingsError


@contextmanager
def yaml_errors(what: str) -> Iterator[None]:
    """Raise errors of the YAML parser as SettingsError. Messages call the text `what`."""
    import yaml  # imported lazily: most queries read no YAML

    try:
        yield
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise SettingsError(f"{what} is not valid YAML{where}: {e.problem or e.context}") from e
    except RecursionError as e:
        raise SettingsError(f"{what} is nested too deeply") from e
    # For an invalid date or number (2023-13-45, !!int x), yaml raises a plain Python exception.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as e:
        raise SettingsError(f"{what} is not valid YAML: {getattr(e, 'reason', e)}") from e
