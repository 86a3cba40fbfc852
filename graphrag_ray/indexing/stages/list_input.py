"""What INPUT holds: files that can be read, those that cannot, and the folder that names are relative to."""

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
from graphrag_ray.base.urls import display_url, protocol_of, shown, without_secrets
from graphrag_ray.base.wording import plural
from graphrag_ray.corpus.readers import READERS, extensions
from graphrag_ray.store.remote_files import is_storage_error, modified, open_elsewhere

INDEX_HOLDS = (
    *("work/", "tables/", "intermediate/", "indexes/", "snapshots/", "locks/", "runs/", "gc/", "damaged/"),
    *("CURRENT", "outcome.json"),
)
"""What a store keeps under the index root."""
_PART = re.compile(
    r"(|.*?/)(?:(?:tables|intermediate/[a-z_]+)/[a-z_]+/part-[0-9a-f]{32}"
    r"|(work)/[\w-]{1,64}/part-[0-9]{13}[-~][^/]*-[0-9a-f]{32})\.parquet"
)
"""How a store names its parts. Groups: its root, with a slash; whether it is the part of a journal."""

INDEXES_TOLD = 3

RECENT_S = 2.0
"""The coarsest clock of a file system, FAT's. One that tells fractions of a second ticks
at least 20 times as often."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated")
_VERSIONS = {"ETag", "etag", "md5Hash", "generation", "VersionId", "content_md5", "Content-MD5"}
_SEEN_AS = {*_TIMES, *_VERSIONS}
"""What fsspec's file systems say of a file, of that which changes with it."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")
_SIGNS = re.compile(r"sig|token|secret|password|credential|(api|access)[_-]?key", re.IGNORECASE)
"""Names of what a query holds and nobody else shall."""


@dataclass(frozen=True)
class InputFile:
    """A file that can be read.

    url       where it is
    path      its name relative to INPUT, the natural key of its documents
    seen_as   a hash of what its storage says of it, which changes with its content; "": it does not say
    modified  unix seconds; None where its storage does not say
    reader    the package that reads it; "": we do
    """

    url: str
    path: str
    size: int
    seen_as: str = ""
    modified: float | None = None
    reader: str = ""


@dataclass(frozen=True)
class Listing:
    """What INPUT holds.

    files    by path
    others   how many files of each unknown extension
    indexes  other indexes below INPUT, and what batches and caches keep: their files are left out
    own      where in INPUT the index itself lies, whose files are left out too; "": elsewhere
    base     a hash of the folder that paths are relative to. Its address may hold a password, and it is kept
    """

    files: list[InputFile]
    others: Mapping[str, int]
    indexes: Sequence[str]
    own: str
    base: str


def list_input(
    input_url: str, index_url: str = "", options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """The readable files of `look_at`."""
    return look_at(input_url, index_url, options).files


def look_at(
    input_url: str,
    index_url: str = "",
    options: Mapping[str, Any] | None = None,
    readers_before: Mapping[str, str] = {},
) -> Listing:
    """List a file, folder, glob or URL. Raises InputError when nothing in it can be read.

    index_url       an index, whose own files are no documents even where it lies inside INPUT
    options         of INPUT's storage
    readers_before  extension -> package whose reader the index used: such files are listed without it, too
    """
    try:
        fs, root = open_elsewhere(input_url, options or {})
        base, found, indexes = _found(fs, root)
    except Exception as e:
        if not isinstance(e, ValueError | TypeError | ImportError) and not is_storage_error(e):
            raise
        why = without_secrets(str(e), input_url)
        raise InputError(f"cannot list INPUT {shown(input_url)!r}: {why}") from e
    same = index_url and protocol_of(index_url) == protocol_of(input_url)
    own = f"{fs._strip_protocol(index_url)}/" if same else ""
    stored = tuple(f"{at}{kept}" for at in {*indexes, own} if at for kept in INDEX_HOLDS)
    folder = stable_id("input", display_url(fs.unstrip_protocol(base)))
    skipped = sorted(_name(at.rstrip("/"), base, alone=False) for at in indexes if at != own)
    files, others, now = [], Counter[str](), time.time()
    for path, info in found.items():
        name = _name(path, base, alone=path == root)
        if any(step.startswith(".") for step in name.split("/")) or path.startswith(stored):
            continue
        extension = _extension(name)
        if extension[1:] in READERS or extension in readers_before:
            size = int(info.get("size") or 0)
            told: Mapping[str, Any] = {} if info.get("islink") else info
            if info.get("islink"):  # of a local link, what is told of the file that it leads to
                with suppress(OSError):
                    of = os.stat(path)
                    told = {"size": of.st_size, "mtime": of.st_mtime}
            seen, at = _seen_as(told, folder, now), modified(told)
            reader = READERS.package_of(extension[1:]) or readers_before.get(extension, "")
            files.append(InputFile(fs.unstrip_protocol(path), name, size, seen, at, reader))
        else:
            others[_extension(_without_query(path))] += 1
    if not files:
        also = f" ({plural(others.total(), 'file')} of other kinds)" if others else ""
        also += f" ({skipped_indexes(skipped)})" if skipped else ""
        raise InputError(
            f"nothing to read at INPUT {shown(input_url)!r}{also}: it must be a file, folder, glob or URL "
            f"with {', '.join(sorted(extensions()))} files"
        )
    below = f"{root.rstrip('/')}/"
    return Listing(
        sorted(files, key=lambda f: f.path),
        others,
        skipped,
        _name(own.rstrip("/"), base, alone=False) if own.startswith(below) and own != below else "",
        folder,
    )


def _seen_as(info: Mapping[str, Any], folder: str, now: float) -> str:
    """A hash of the folder and what a storage says of a file in it: its size with the time of its change, its
    ETag, its version. "" where it says too little, and for a file that was changed a moment ago: it may be
    changed once more in the same tick of its clock.

    info: of fsspec; now: unix seconds
    """
    told = {name: str(info[name]) for name in _SEEN_AS if info.get(name) not in (None, "")}
    told = {name: value for name, value in told.items() if not value.startswith("W/")}  # says: much the same
    if not told.keys() & _VERSIONS:
        times = [modified({"mtime": info[name]}) for name in _TIMES if name in told]
        if not times or any(at is None or at > now - (RECENT_S / 20 if at % 1 else RECENT_S) for at in times):
            return ""
    values = [f"{name} {told[name]}" for name in sorted(told)]
    return stable_id("seen", folder, str(info.get("size")), *values)


def skipped_indexes(indexes: Sequence[str]) -> str:
    """`2 indexes skipped (old, answers.parquet.work)`."""
    more = ", …" if len(indexes) > INDEXES_TOLD else ""
    named = ", ".join(indexes[:INDEXES_TOLD])
    return f"{plural(len(indexes), 'index', 'indexes')} skipped ({named}{more})"


def _found(fs: Any, root: str) -> tuple[str, dict[str, Any], set[str]]:
    """The base, what is there, and where stores keep their files among these."""
    base, found = root, dict[str, Any]()
    there = fs.exists(root)
    if any(c in root for c in "*?[") and not there:
        found = {p: i for p, i in fs.glob(root, detail=True).items() if i["type"] == "file"}
        base = posixpath.dirname(root[: min(root.index(c) for c in "*?[" if c in root)])
    elif fs.isfile(root):
        base, found = posixpath.dirname(_without_query(root)), {root: fs.info(root)}
    elif there:
        found = _below(fs, root)
    sure, maybe = set[str](), set[str]()
    for part in filter(None, map(_PART.fullmatch, found)):
        (sure if part[2] else maybe).add(part[1])
    # A folder `tables` alone might be anybody's.
    sure |= {at for at in maybe - sure if any(fs.exists(f"{at}{of}") for of in ("snapshots", "locks"))}
    return base, found, sure


def _below(fs: Any, folder: str) -> dict[str, Any]:
    """All files below a folder. fsspec's own `find` takes a local folder that may not be listed for an
    empty one, whose documents would then be deleted, and follows links in circles. Links lead to a folder
    once: folders with links to each other have more paths than anybody could list."""
    if not isinstance(fs, LocalFileSystem):
        return dict(fs.find(folder, detail=True))
    found: dict[str, Any] = {}
    folders: list[tuple[str, tuple[str, ...], bool]] = [(folder, (os.path.realpath(folder),), False)]
    linked: set[str] = set()
    for at, above, by_link in folders:  # grows while we go through it
        for info in sorted(fs.ls(at, detail=True), key=lambda info: str(info["name"])):
            path = info["name"]
            if not os.path.isdir(path):
                found[path] = info
            elif (real := os.path.realpath(path)) not in above:
                is_linked = by_link or os.path.islink(path)
                if not is_linked or real not in linked:
                    folders.append((path, (*above, real), is_linked))
                if is_linked:
                    linked.add(real)
    return found


def _name(path: str, base: str, alone: bool) -> str:
    """What a file is called relative to the base. A path is an address at an HTTP server: its password and
    signature are not of the name.

    alone: it is all of INPUT, and needs nothing of its query to be told from others
    """
    named = path
    if _ADDRESS.match(path):
        named, query = display_url(path), urlsplit(path).query
        told = "&".join(p for p in query.split("&") if p and not _SIGNS.search(p.partition("=")[0]))
        if told and not (alone and _extension(named)[1:] in READERS):
            named = f"{named}?{told}"
        base = display_url(base)
    return posixpath.relpath(named, base) if base else named


def _without_query(path: str) -> str:
    return display_url(path) if _ADDRESS.match(path) else path


def _extension(path: str) -> str:
    return posixpath.splitext(path)[1].lower()
