"""Options of file systems, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECRET = {
    "access_key", "account_key", "api_key", "aws_access_key_id", "aws_secret_access_key",
    "aws_session_token", "client_secret", "connection_string", "credential", "key", "password",
    "sas_token", "secret", "secret_key", "session_token", "token", "username",
}  # fmt: skip
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "local": "file"}
_NO_SECRET = {"anon", "cloud", "google_default"}
"""Ways of gcsfs's to find a token."""


def secret_options(options: Mapping[str, Any], above: str = "") -> list[str]:
    """The names of options that hold a credential, sorted; `a.b` for those below another."""
    found = []
    for name, value in options.items():
        if str(name).lower() in _SECRET and value not in _NO_SECRET:
            found.append(f"{above}{name}")
        if isinstance(value, Mapping):
            found += secret_options(value, f"{above}{name}.")
    return sorted(found)


def protocol_of(url: str) -> str:
    """`s3` of `s3://bucket/folder`, that of the last link of a chain; `file` for a local path. Of several
    names for one kind of storage the same."""
    protocol, separator, _ = url.rpartition("::")[2].partition("://")
    return _SAME.get(protocol, protocol) if separator else "file"
