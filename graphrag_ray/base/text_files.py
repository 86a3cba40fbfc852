"""Small text files that a command is given: settings, prompts, lists of names. On this machine, or at a URL
that fsspec knows (s3://…), reached as the environment says: how storage is reached may stand in them.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from graphrag_ray.base.urls import is_url, shown, without_secrets


def read_text(place: str) -> str:
    """The whole file. Raises FileNotFoundError, OSError for all else in the way, UnicodeDecodeError."""
    if not is_url(place):
        return Path(place).read_text("utf-8")
    try:
        fs, path = _reached(place)
        data: bytes = fs.cat_file(path)
    except FileNotFoundError as e:
        raise FileNotFoundError(f"there is no {shown(place)}") from e
    except Exception as e:
        raise OSError(_told(e, place)) from e
    return data.decode("utf-8")


def names_in(folder: str) -> set[str] | None:
    """The names of what lies in a folder; None where there is no such folder. Raises OSError."""
    if not is_url(folder):
        path = Path(folder)
        return {found.name for found in path.iterdir()} if path.is_dir() else None
    try:
        fs, path_there = _reached(folder)
        return {posixpath.basename(found) for found in fs.ls(path_there, detail=False)} or None
    except FileNotFoundError:
        return None
    except Exception as e:
        raise OSError(_told(e, folder)) from e


def beside(file: str, place: str) -> str:
    """A path that is written in a file: relative to it, wherever it is read from."""
    if is_url(place) or place.startswith("~"):
        return place
    if is_url(file) and not place.startswith("/"):
        # Keys of an object store are literal: nobody resolves `..` there.
        scheme, _, rest = file.partition("://")
        host, _, path = rest.partition("/")
        return f"{scheme}://{host}{posixpath.normpath(posixpath.join('/', posixpath.dirname(path), place))}"
    return str((Path(file).parent / place).absolute())


def _reached(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.partition("://")[0]
    fresh = {} if protocol in ("http", "https", "memory") else {"use_listings_cache": False}
    fs, path = fsspec.url_to_fs(url, **fresh)
    return fs, path


def _told(error: Exception, place: str) -> str:
    if isinstance(error, PermissionError):
        return "access is denied"
    return without_secrets(str(error), place) or type(error).__name__
