"""Version hashes of input files, which come from the storage's metadata."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from graphrag_ray.indexing.stages.input_listing import _version_hash

NOW = 1_700_000_000.0
LONG_AGO = NOW - 3600


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"size": 3, "mtime": LONG_AGO}, {"size": 4, "mtime": LONG_AGO}),
        ({"size": 3, "mtime": LONG_AGO}, {"size": 3, "mtime": LONG_AGO - 9000}),
        ({"size": 3, "ETag": '"a"'}, {"size": 3, "ETag": '"b"'}),
        ({"size": 3, "ETag": '"a"', "VersionId": "1"}, {"size": 3, "ETag": '"a"', "VersionId": "2"}),
        ({"size": 3, "generation": 1}, {"size": 3, "generation": 2}),
        (
            {"size": 3, "LastModified": datetime.fromtimestamp(LONG_AGO, UTC)},
            {"size": 3, "updated": "2020-01-01"},
        ),
    ],
)
def test_hash_depends_on_size_time_etag_and_version(one: dict[str, Any], other: dict[str, Any]):
    assert _version_hash(one, "folder", NOW) == _version_hash(dict(one), "folder", NOW + 9) != ""
    assert _version_hash(one, "folder", NOW) != _version_hash(other, "folder", NOW) != ""


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"size": 3},
        {"size": 3, "mtime": NOW - 1},  # It may be written again in the same tick.
        {"size": 3, "mtime": NOW - 0.05},
        {"size": 3, "mtime": NOW + 1e6},  # The clock of the storage is ahead.
        {"size": 3, "mtime": "yesterday"},
        {"size": 3, "ETag": 'W/"a"'},  # A weak ETag does not change with every change.
        {"size": 3, "ETag": ""},
    ],
)
def test_hash_is_empty_if_metadata_is_insufficient(info: dict[str, Any]):
    assert _version_hash(info, "folder", NOW) == ""


def test_recent_file_with_an_etag_has_a_hash():
    assert _version_hash(
        {"size": 3, "ETag": '"a"', "LastModified": datetime.fromtimestamp(NOW, UTC)}, "folder", NOW
    )


def test_clock_with_fractions_of_a_second_is_trusted_sooner():
    assert _version_hash({"size": 3, "mtime": NOW - 0.5}, "folder", NOW)
