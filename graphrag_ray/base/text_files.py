"""Read small text files that commands use: settings, prompts, lists of names.

They are local files or URLs that fsspec supports (s3://…). URLs are opened with credentials from the
environment, not from the settings, because the settings may be one of these files.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from graphrag_ray.base.urls import display_path, is_url, redact_urls


def read_text(path_or_url: str) -> str:
    """Read a file. Raises FileNotFoundError, OSError for other access errors, or UnicodeDecodeError."""
    if not is_url(path_or_url):
        return Path(path_or_url).read_text("utf-8")
    try:
        fs, path = _open_filesystem(path_or_url)
        data: bytes = fs.cat_file(path)
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{display_path(path_or_url)} does not exist") from e
    except Exception as e:
        raise OSError(_reason(e, path_or_url)) from e
    return data.decode("utf-8")


def list_names(folder: str) -> set[str] | None:
    """List the names in a folder. Returns None if it does not exist, or if it is a URL and empty."""
    if not is_url(folder):
        path = Path(folder)
        return {child.name for child in path.iterdir()} if path.is_dir() else None
    try:
        fs, remote = _open_filesystem(folder)
        return {posixpath.basename(child) for child in fs.ls(remote, detail=False)} or None
    except FileNotFoundError:
        return None
    except Exception as e:
        raise OSError(_reason(e, folder)) from e


def resolve_relative(path_or_url: str, base_file: str) -> str:
    """Resolve a path relative to the file that contains it."""
    if is_url(path_or_url) or path_or_url.startswith("~"):
        return path_or_url
    if is_url(base_file) and not path_or_url.startswith("/"):
        # Object stores do not resolve `..` in keys.
        scheme, _, location = base_file.partition("://")
        host, _, base = location.partition("/")
        path = posixpath.normpath(posixpath.join("/", posixpath.dirname(base), path_or_url))
        return f"{scheme}://{host}{path}"
    return str((Path(base_file).parent / path_or_url).absolute())


def _open_filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.partition("://")[0]
    options = {} if protocol in ("http", "https", "memory") else {"use_listings_cache": False}
    fs, path = fsspec.url_to_fs(url, **options)
    return fs, path


def _reason(error: Exception, path_or_url: str) -> str:
    if isinstance(error, PermissionError):
        return "access is denied"
    return redact_urls(str(error), path_or_url) or type(error).__name__
