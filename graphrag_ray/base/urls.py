"""Recognise URLs and remove secrets from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,40}://[^\s'"<>]+""")
"""The length of the scheme is limited so that searching a long word does not take quadratic time."""
_NEXT_LINK = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")
"""Separator in chained fsspec URLs (simplecache::https://…, zip://*.txt::https://…)."""
_MIN_SECRET_CHARS = 4
"""Shorter user names and passwords are not removed from text: they would match ordinary words."""

_SECRET_NAMES = {
    "access_key", "account_key", "api_key", "aws_access_key_id", "aws_secret_access_key",
    "aws_session_token", "client_secret", "connection_string", "credential", "key", "password",
    "sas_token", "secret", "secret_key", "session_token", "token", "username",
}  # fmt: skip
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "local": "file"}
_NOT_SECRET = {"anon", "cloud", "google_default"}
"""Values of gcsfs's `token` that are not secrets."""


def is_url(path_or_url: str) -> bool:
    return "://" in path_or_url


def display_url(url: str) -> str:
    """Remove user, password and query from a URL."""
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


def display_path(path_or_url: str) -> str:
    """Return a path unchanged, or a URL without secrets."""
    return display_url(path_or_url) if is_url(path_or_url) else path_or_url


def redact_urls(text: str, url: str = "") -> str:
    """Remove the secrets of URLs from a text. Those of `url` are removed wherever they occur."""
    if is_url(url):
        text = text.replace(url, display_url(url))
        secrets = []
        for link in _NEXT_LINK.split(url):
            address, _, query = link.partition("://")[2].partition("?")
            authority = address if _display_link(link).endswith("://…") else address.partition("/")[0]
            user, at, _ = authority.rpartition("@")
            secrets += [f"{user}{at}", user.partition(":")[2], f"?{query}", query]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _MIN_SECRET_CHARS:
                text = text.replace(secret, "").replace(unquote(secret), "")

    def without_secret(match: re.Match[str]) -> str:
        return display_url(match[0]) if any(c in match[0] for c in "@?#") else match[0]

    return _ADDRESS.sub(without_secret, text)


def find_secret_options(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the sorted names of options that contain a credential. Nested options are written `a.b`."""
    names = []
    for name, value in options.items():
        if str(name).lower() in _SECRET_NAMES and value not in _NOT_SECRET:
            names.append(f"{prefix}{name}")
        if isinstance(value, Mapping):
            names += find_secret_options(value, f"{prefix}{name}.")
    return sorted(names)


def protocol_of(url: str) -> str:
    """Return the protocol of the last link of a URL without aliases, or `file` for a local path."""
    protocol, separator, _ = url.rpartition("::")[2].partition("://")
    return _ALIASES.get(protocol, protocol) if separator else "file"
