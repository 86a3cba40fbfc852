"""Small text files passed to a command: settings, prompts, lists of names.

They are local files or URLs that fsspec supports (s3://…). URLs are reached with the environment's
credentials, since the storage settings may be in such a file.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from graphrag_ray.base.urls import display_path, is_url, without_secrets


def read_text(place: str) -> str:
    """Read a file. Raises FileNotFoundError, OSError for other access errors, or UnicodeDecodeError."""
    if not is_url(place):
        return Path(place).read_text("utf-8")
    try:
        fs, path = _reached(place)
        data: bytes = fs.cat_file(path)
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{display_path(place)} does not exist") from e
    except Exception as e:
        raise OSError(_reason(e, place)) from e
    return data.decode("utf-8")


def names_in(folder: str) -> set[str] | None:
    """The names in a folder, or None if the folder does not exist. Raises OSError."""
    if not is_url(folder):
        path = Path(folder)
        return {child.name for child in path.iterdir()} if path.is_dir() else None
    try:
        fs, remote = _reached(folder)
        return {posixpath.basename(child) for child in fs.ls(remote, detail=False)} or None
    except FileNotFoundError:
        return None
    except Exception as e:
        raise OSError(_reason(e, folder)) from e


def resolve_beside(file: str, place: str) -> str:
    """Resolve a path that is written in a file, relative to that file."""
    if is_url(place) or place.startswith("~"):
        return place
    if is_url(file) and not place.startswith("/"):
        # Object store keys are literal: `..` has to be resolved here.
        scheme, _, rest = file.partition("://")
        host, _, path = rest.partition("/")
        return f"{scheme}://{host}{posixpath.normpath(posixpath.join('/', posixpath.dirname(path), place))}"
    return str((Path(file).parent / place).absolute())


def _reached(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.partition("://")[0]
    options = {} if protocol in ("http", "https", "memory") else {"use_listings_cache": False}
    fs, path = fsspec.url_to_fs(url, **options)
    return fs, path


def _reason(error: Exception, place: str) -> str:
    if isinstance(error, PermissionError):
        return "access is denied"
    return without_secrets(str(error), place) or type(error).__name__
