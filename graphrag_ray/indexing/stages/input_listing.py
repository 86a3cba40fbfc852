"""List INPUT: the files that can be read, the files that cannot, and indexes that are skipped."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fsspec.implementations.local import LocalFileSystem

from graphrag_ray.base.errors import InputError
from graphrag_ray.base.ids import stable_id
from graphrag_ray.base.urls import display_path, display_url, protocol_of, redact_urls
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.readers import READERS, extensions
from graphrag_ray.store.remote_files import is_storage_error, modified_time, open_external

INDEX_CONTENTS = (
    *("work/", "tables/", "intermediate/", "indexes/", "snapshots/", "locks/", "runs/", "gc/", "damaged/"),
    *("CURRENT", "outcome.json"),
)
"""All entries that a store creates under the root of an index."""
_PART_PATH = re.compile(
    r"(|.*?/)(?:(?:tables|intermediate/[a-z_]+)/[a-z_]+/part-[0-9a-f]{32}"
    r"|(work)/[\w-]{1,64}/part-[0-9]{13}[-~][^/]*-[0-9a-f]{32})\.parquet"
)
"""Path of a stored part. Group 1 is the store's root with a slash; group 2 is `work` for a journal part."""
MAX_LISTED_INDEXES = 3
RECENT_S = 2.0
"""Tick of the coarsest file system clock (FAT). Clocks with fractions tick at least 20 times as often."""
_TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated")
_VERSION_FIELDS = {"ETag", "etag", "md5Hash", "generation", "VersionId", "content_md5", "Content-MD5"}
"""Fields of fsspec's file infos that change with a file's content."""
_URL_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_SECRET = re.compile(r"sig|token|secret|password|credential|(api|access)[_-]?key", re.IGNORECASE)


@dataclass(frozen=True)
class InputFile:
    """A file that can be read.

    Attributes:
        path: Path relative to INPUT, the natural key of the file's documents.
        version_hash: Hash of the storage's metadata, which changes with the content; "" if unknown.
        modified: Unix seconds, or None if the storage does not report it.
        reader: Package that provides the reader; "" for a built-in one.
    """

    url: str
    path: str
    size: int
    version_hash: str = ""
    modified: float | None = None
    reader: str = ""


@dataclass(frozen=True)
class Listing:
    """The contents of INPUT, files sorted by path.

    Attributes:
        unknown_extensions: Number of files by unknown extension.
        nested_indexes: Other indexes, and stores of batches and caches, below INPUT. Their files are skipped.
        own_index: Path of this run's index if it is inside INPUT, or "". It is skipped, too.
        folder_hash: Hash of the folder that paths are relative to. The hash is stored instead of the URL,
            which may contain secrets.
    """

    files: list[InputFile]
    unknown_extensions: Mapping[str, int]
    nested_indexes: Sequence[str]
    own_index: str
    folder_hash: str


def list_input(
    input_url: str, index_url: str = "", options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """Return the readable files of `scan_input`."""
    return scan_input(input_url, index_url, options).files


def scan_input(
    input_url: str,
    index_url: str = "",
    options: Mapping[str, Any] | None = None,
    readers_before: Mapping[str, str] = {},
) -> Listing:
    """List a file, folder, glob or URL.

    Args:
        index_url: Index whose own files are skipped even if it is inside INPUT.
        options: Storage options of INPUT.
        readers_before: Reader package by extension, as used by the existing index. Files with these
            extensions are listed even if the package is no longer installed.

    Raises:
        InputError: INPUT cannot be listed, or nothing in it can be read.
    """
    try:
        fs, root = open_external(input_url, options or {})
        base, infos, indexes = _find_files(fs, root)
    except Exception as e:
        if not isinstance(e, ValueError | TypeError | ImportError) and not is_storage_error(e):
            raise
        reason = redact_urls(str(e), input_url)
        raise InputError(f"Cannot list INPUT {display_path(input_url)!r}: {reason}") from e
    is_same_storage = index_url and protocol_of(index_url) == protocol_of(input_url)
    own_index = f"{fs._strip_protocol(index_url)}/" if is_same_storage else ""
    stored = tuple(f"{index}{name}" for index in {*indexes, own_index} if index for name in INDEX_CONTENTS)
    folder_hash = stable_id("input", display_url(fs.unstrip_protocol(base)))
    nested = sorted(_relative_name(index.rstrip("/"), base) for index in indexes - {own_index})
    files, unknown, now = [], Counter[str](), time.time()
    for path, info in infos.items():
        name = _relative_name(path, base, is_only=path == root)
        if any(step.startswith(".") for step in name.split("/")) or path.startswith(stored):
            continue
        extension = _extension(name)
        if extension[1:] not in READERS and extension not in readers_before:
            unknown[_extension(_without_query(path))] += 1
            continue
        metadata: Mapping[str, Any] = info
        if info.get("islink"):  # fsspec describes a local link itself rather than its target
            metadata = {}
            with suppress(OSError):
                target = os.stat(path)
                metadata = {"size": target.st_size, "mtime": target.st_mtime}
        url, size = fs.unstrip_protocol(path), int(info.get("size") or 0)
        version_hash = _version_hash(metadata, folder_hash, now)
        reader = READERS.package_of(extension[1:]) or readers_before.get(extension, "")
        files.append(InputFile(url, name, size, version_hash, modified_time(metadata), reader))
    if not files:
        skipped = f" ({plural(unknown.total(), 'file')} of other types)" if unknown else ""
        skipped += f" ({skipped_indexes(nested)})" if nested else ""
        raise InputError(
            f"Nothing to read at INPUT {display_path(input_url)!r}{skipped}. "
            f"It must be a file, folder, glob or URL with {', '.join(sorted(extensions()))} files."
        )
    files.sort(key=lambda file: file.path)
    parent = f"{root.rstrip('/')}/"
    is_inside = own_index.startswith(parent) and own_index != parent
    own_name = _relative_name(own_index.rstrip("/"), base) if is_inside else ""
    return Listing(files, unknown, nested, own_name, folder_hash)


def _version_hash(info: Mapping[str, Any], folder_hash: str, now: float) -> str:
    """Hash the folder and the storage's metadata of a file: size, modification time, ETag and version.

    Returns "" if the metadata is insufficient, or if the file changed so recently that it might change again
    within the same tick of its clock.
    """
    known = {
        name: str(info[name])
        for name in {*_TIME_FIELDS, *_VERSION_FIELDS}
        if info.get(name) not in (None, "") and not str(info[name]).startswith("W/")  # a weak ETag
    }
    if not known.keys() & _VERSION_FIELDS:
        times = [modified_time({"mtime": info[name]}) for name in _TIME_FIELDS if name in known]
        if not times or any(t is None or t > now - (RECENT_S / 20 if t % 1 else RECENT_S) for t in times):
            return ""
    values = [f"{name} {known[name]}" for name in sorted(known)]
    return stable_id("seen", folder_hash, str(info.get("size")), *values)


def skipped_indexes(indexes: Sequence[str]) -> str:
    """Describe skipped indexes: `2 indexes skipped (old, answers.parquet.work)`."""
    ellipsis = ", …" if len(indexes) > MAX_LISTED_INDEXES else ""
    names = ", ".join(indexes[:MAX_LISTED_INDEXES])
    return f"{plural(len(indexes), 'index', 'indexes')} skipped ({names}{ellipsis})"


def _find_files(fs: Any, root: str) -> tuple[str, dict[str, Any], set[str]]:
    """Return the base of relative paths, file infos by path, and the roots of indexes found below."""
    base, infos = root, dict[str, Any]()
    exists = fs.exists(root)
    if any(c in root for c in "*?[") and not exists:
        infos = {p: i for p, i in fs.glob(root, detail=True).items() if i["type"] == "file"}
        base = posixpath.dirname(root[: min(root.index(c) for c in "*?[" if c in root)])
    elif fs.isfile(root):
        base, infos = posixpath.dirname(_without_query(root)), {root: fs.info(root)}
    elif exists:
        infos = _walk(fs, root)
    indexes, candidates = set[str](), set[str]()
    for match in filter(None, map(_PART_PATH.fullmatch, infos)):
        (indexes if match[2] else candidates).add(match[1])
    # A folder called `tables` may not belong to an index.
    indexes |= {c for c in candidates - indexes if fs.exists(f"{c}snapshots") or fs.exists(f"{c}locks")}
    return base, infos, indexes


def _walk(fs: Any, root: str) -> dict[str, Any]:
    """Find all files below a folder.

    fsspec's own `find` treats a local folder without read permission as empty, so that its documents would be
    deleted, and follows links in circles. Here, each linked folder is followed once, because folders that
    link to one another have more paths than can be listed.
    """
    if not isinstance(fs, LocalFileSystem):
        return dict(fs.find(root, detail=True))
    infos: dict[str, Any] = {}
    folders: list[tuple[str, tuple[str, ...], bool]] = [(root, (os.path.realpath(root),), False)]
    linked: set[str] = set()
    for folder, ancestors, by_link in folders:  # The list grows during the loop.
        for info in sorted(fs.ls(folder, detail=True), key=lambda info: str(info["name"])):
            path = info["name"]
            if not os.path.isdir(path):
                infos[path] = info
            elif (real := os.path.realpath(path)) not in ancestors:
                is_linked = by_link or os.path.islink(path)
                if not is_linked or real not in linked:
                    folders.append((path, (*ancestors, real), is_linked))
                if is_linked:
                    linked.add(real)
    return infos


def _relative_name(path: str, base: str, is_only: bool = False) -> str:
    """Return a path relative to the base, without the password and signature of a URL.

    If INPUT is a single file (`is_only`), its name needs no query string to distinguish it from others.
    """
    name = path
    if _URL_SCHEME.match(path):
        name, query = display_url(path), urlsplit(path).query
        public = "&".join(p for p in query.split("&") if p and not _SECRET.search(p.partition("=")[0]))
        if public and not (is_only and _extension(name)[1:] in READERS):
            name = f"{name}?{public}"
        base = display_url(base)
    return posixpath.relpath(name, base) if base else name


def _without_query(path: str) -> str:
    return display_url(path) if _URL_SCHEME.match(path) else path


def _extension(path: str) -> str:
    return posixpath.splitext(path)[1].lower()
