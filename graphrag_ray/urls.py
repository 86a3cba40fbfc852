"""Addresses: which places are URLs, and how they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def is_url(place: str) -> bool:
    """Whether it names a place at a URL, not a path on this machine."""
    return "://" in place


def display_url(url: str) -> str:
    """An address as it may be shown: without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shown(place: str) -> str:
    """A path as it is, a URL as it may be shown."""
    return display_url(place) if is_url(place) else place
