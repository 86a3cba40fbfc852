"""URLs, and how to show them without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,40}://[^\s'"<>]+""")
"""The length of the scheme is bounded, since a search tries it at every letter of a long word."""
_NEXT_LINK = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")
"""Separator in chained fsspec URLs (simplecache::https://…, zip://*.txt::https://…)."""
_MIN_SECRET_CHARS = 4
"""Shorter names and passwords are not removed from text, since they occur in ordinary words."""

_SECRET = {
    "access_key", "account_key", "api_key", "aws_access_key_id", "aws_secret_access_key",
    "aws_session_token", "client_secret", "connection_string", "credential", "key", "password",
    "sas_token", "secret", "secret_key", "session_token", "token", "username",
}  # fmt: skip
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "local": "file"}
_NO_SECRET = {"anon", "cloud", "google_default"}
"""Values of gcsfs's `token` that are not secrets."""


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a local path."""
    return "://" in place


def display_url(url: str) -> str:
    """The URL without user, password and query."""
    return "::".join(_display_link(link) for link in _NEXT_LINK.split(url))


def _display_link(link: str) -> str:
    try:
        parts = urlsplit(link)
    except ValueError:
        return f"{link.partition('://')[0]}://…"
    host = parts.netloc.rpartition("@")[2]
    port = host.rpartition(":")[2]
    ends_in_port = host.endswith("]") or not port or port.isdecimal()
    if ":" in host and "@" not in parts.netloc and "@" in link and not ends_in_port:
        return f"{parts.scheme}://…"  # a password that contains / or #
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def display_path(place: str) -> str:
    """A path unchanged, a URL without secrets."""
    return display_url(place) if is_url(place) else place


def without_secrets(text: str, url: str = "") -> str:
    """Remove the secrets of all URLs in a text, such as an error message.

    Args:
        text: The text.
        url: The URL that the text is about, whose user, password and query are removed wherever they occur.
    """
    if is_url(url):
        text = text.replace(url, display_url(url))
        secrets = []
        for link in _NEXT_LINK.split(url):
            rest, _, query = link.partition("://")[2].partition("?")
            authority = rest if _display_link(link).endswith("://…") else rest.partition("/")[0]
            user, at, _ = authority.rpartition("@")
            secrets += [f"{user}{at}", user.partition(":")[2], f"?{query}", query]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _MIN_SECRET_CHARS:
                text = text.replace(secret, "").replace(unquote(secret), "")

    def without_secret(match: re.Match[str]) -> str:
        return display_url(match[0]) if any(c in match[0] for c in "@?#") else match[0]

    return _ADDRESS.sub(without_secret, text)


def secret_options(options: Mapping[str, Any], above: str = "") -> list[str]:
    """The sorted names of options that hold a credential, nested ones as `a.b`."""
    names = []
    for name, value in options.items():
        if str(name).lower() in _SECRET and value not in _NO_SECRET:
            names.append(f"{above}{name}")
        if isinstance(value, Mapping):
            names += secret_options(value, f"{above}{name}.")
    return sorted(names)


def protocol_of(url: str) -> str:
    """The protocol of a URL (of the last link of a chained one), with aliases resolved; `file` for a local
    path."""
    protocol, separator, _ = url.rpartition("::")[2].partition("://")
    return _SAME.get(protocol, protocol) if separator else "file"
