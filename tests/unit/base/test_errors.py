"""Every error survives pickling, is in the documented hierarchy and has the documented exit code."""

from __future__ import annotations

import inspect
import pickle

import pytest

from graphrag_ray.base import errors
from graphrag_ray.base.errors import GraphRagError

ALL = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, GraphRagError)]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_survives_pickling(kind):
    error = kind("what happened")
    error.note = "kept"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == "what happened" and again.note == "kept"


def test_attributes_of_call_errors_survive_pickling():
    error = errors.TransientCallError("slow down", status=429, retry_after_s=1.5)
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.retry_after_s) == (429, 1.5)


@pytest.mark.parametrize("kind", ALL)
def test_the_module_docstring_lists_every_error(kind):
    assert kind.__name__ in (errors.__doc__ or "")


def test_exit_codes_match_the_documentation_of_the_command_line():
    codes = {kind.__name__: kind.exit_code for kind in ALL}
    assert codes["SettingsError"] == codes["DeletionRefused"] == 2
    assert codes["NotConfigured"] == 2, "as of a run that is refused for it before it begins"
    assert codes["BudgetSpent"] == 4
    assert codes["ModelUnavailable"] == codes["LockHeld"] == codes["TooManyFailures"] == 1
