"""Addresses: which places are URLs, and how they may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,40}://[^\s'"<>]+""")
"""Its scheme is bounded: a search tries it at each letter of a long word."""
_NEXT_LINK = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")
"""Where a chained URL of fsspec goes on (simplecache::https://…, zip://*.txt::https://…)."""
_SHORTEST = 4
"""Shorter names and passwords are not looked for where they stand alone: they would tear words apart."""

_SECRET = {
    "access_key", "account_key", "api_key", "aws_access_key_id", "aws_secret_access_key",
    "aws_session_token", "client_secret", "connection_string", "credential", "key", "password",
    "sas_token", "secret", "secret_key", "session_token", "token", "username",
}  # fmt: skip
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "local": "file"}
_NO_SECRET = {"anon", "cloud", "google_default"}
"""Ways of gcsfs's to find a token."""


def is_url(place: str) -> bool:
    """Whether it names a place at a URL, not a path on this machine."""
    return "://" in place


def display_url(url: str) -> str:
    """An address as it may be shown: without user, password and query."""
    return "::".join(_displayed(link) for link in _NEXT_LINK.split(url))


def _displayed(link: str) -> str:
    try:
        parts = urlsplit(link)
    except ValueError:
        return f"{link.partition('://')[0]}://…"
    host = parts.netloc.rpartition("@")[2]
    port = host.rpartition(":")[2]
    ends_in_port = host.endswith("]") or not port or port.isdecimal()
    if ":" in host and "@" not in parts.netloc and "@" in link and not ends_in_port:
        return f"{parts.scheme}://…"  # a password with a / or # in it, which is none of a host
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def shown(place: str) -> str:
    """A path as it is, a URL as it may be shown."""
    return display_url(place) if is_url(place) else place


def without_secrets(text: str, url: str = "") -> str:
    """What somebody said, as it may be kept: every address in it as it may be shown.

    url: that which it speaks of, whose user, password and query may stand in it by themselves too
    """
    if is_url(url):
        text = text.replace(url, display_url(url))
        for secret in _secrets_of(url):
            text = text.replace(secret, "").replace(unquote(secret), "")

    def as_shown(found: re.Match[str]) -> str:
        return display_url(found[0]) if any(c in found[0] for c in "@?#") else found[0]

    return _ADDRESS.sub(as_shown, text)


def _secrets_of(url: str) -> list[str]:
    """What is not to be shown of a URL, the longest first."""
    found = []
    for link in _NEXT_LINK.split(url):
        rest, _, query = link.partition("://")[2].partition("?")
        authority = rest if _displayed(link).endswith("://…") else rest.partition("/")[0]
        user, at, _ = authority.rpartition("@")
        password = user.partition(":")[2]
        found += [f"{user}{at}", password, f"?{query}", query]
    return sorted((s for s in found if len(s) >= _SHORTEST), key=len, reverse=True)


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
