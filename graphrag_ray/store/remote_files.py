"""Objects behind any other fsspec URL: S3 and its kin first, gs:// and az:// by their own packages.

One owner of retries: `files.Store`; what s3fs and botocore would retry by themselves is turned off. aiohttp
still sends a PUT twice when the connection breaks, and so may anything between us and the server: a
conditional create that is sent twice is refused by its own success (`files.Store.create`).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

_CONDITIONAL = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Protocols whose fsspec file system puts an object only if there is none (`mode="create"`)."""

_SINGLE_PUT_BYTES = 1 << 30
"""s3fs sends up to twice this in one request; more in parts, which appear together at the end."""

_EXTRAS = {"gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Protocols whose package comes with an extra of ours."""
_INPUT_ATTEMPTS = 4
"""Of one request outside of a store, by the client; some 3 s. s3fs repeats these where it may."""
_BEYOND_END = 416

_TRANSIENT_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNO = {errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)}
# Class names (of any base), since the packages that define them are not ours to import.
_TRANSIENT_NAMES = {
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ConnectionError",  # botocore
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseParserError",  # a 503 whose body is not XML
    "ServiceRequestError",  # azure
    "ServiceResponseError",
    "TransportError",  # google
}


class ObjectFiles:
    """The objects below an fsspec URL. Every object is put in one request and so is whole or absent."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        import fsspec  # here and below: local files do without it

        protocol = url.split("://", 1)[0]
        self._is_s3 = protocol in ("s3", "s3a")
        self.can_create = protocol in _CONDITIONAL
        arguments = s3_arguments(options) if self._is_s3 else dict(options)
        _look_for_package(protocol)
        # Listings and instances of other users of fsspec in this process are not ours: theirs are cached.
        self._fs = fsspec.filesystem(
            protocol, **arguments, use_listings_cache=False, skip_instance_cache=True
        )
        if self._is_s3:
            self._fs.retries = 1
        self.root = str(self._fs._strip_protocol(url)).rstrip("/")

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._at(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        try:
            return bytes(self._fs.cat_file(self._at(path), start=start, end=end))
        except Exception as e:
            if http_status(e) == _BEYOND_END:
                return b""  # as from a file
            raise

    def upload(self, path: str, source: str) -> None:
        """A large one in parts, which appear together at the end."""
        self._make_parents(path)
        self._fs.put_file(source, self._at(path))

    def create(self, path: str, data: bytes) -> bool:
        """Put an object unless there is one. Without the primitive: look, then put."""
        if not self.can_create and self.size(path) is not None:
            return False
        try:
            self.write(path, data, **({"mode": "create"} if self.can_create else {}))
        except FileExistsError:
            return False
        except Exception as e:
            # s3fs translates a refused condition to FileExistsError only where the server names the
            # condition; Ceph's gateway does not.
            if http_status(e) == 412:
                return False
            raise
        return True

    def size(self, path: str) -> int | None:
        try:
            if self._is_s3:
                # One request; `info` asks a second time, whether a missing object may be a folder.
                bucket, key, _ = self._fs.split_path(self._at(path))
                return int(self._fs.call_s3("head_object", Bucket=bucket, Key=key)["ContentLength"])
            found = self._fs.info(self._at(path))
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else None

    def list(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        """(path, bytes, time of the last change) of all objects below a folder, all pages; nothing where
        there are none."""
        if self._is_s3 and folder:
            # For a folder without objects s3fs would ask twice more, whether it is an object itself.
            found = self._fs.find(self.root, prefix=f"{folder}/", detail=True)
        else:
            found = self._fs.find(self._at(folder) if folder else self.root, detail=True)
        for name, info in found.items():
            path = str(name).removeprefix(self.root + "/")
            if info["type"] == "file" and (not folder or path.startswith(folder + "/")):
                yield path, int(info["size"]), modified(info)

    def leftovers(self) -> Iterator[tuple[str, int, float | None]]:
        """Nothing: an object is there when all of it is."""
        return iter(())

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def is_transient(self, error: BaseException) -> bool:
        """Worth another attempt: the server is busy or out of reach, or hung up."""
        if isinstance(error, FileNotFoundError | FileExistsError | PermissionError):
            return False
        if isinstance(error, TimeoutError | ConnectionError):
            return True
        # Before the status: aiohttp calls an answer that was cut short a 400.
        if any(base.__name__ in _TRANSIENT_NAMES for base in type(error).__mro__):
            return True
        status = http_status(error)
        if status is not None:
            return status in _TRANSIENT_STATUS
        return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def write(self, path: str, data: bytes, **how: Any) -> None:
        if self._is_s3:
            how["chunksize"] = _SINGLE_PUT_BYTES
        self._make_parents(path)
        self._fs.pipe_file(self._at(path), data, **how)

    def _make_parents(self, path: str) -> None:
        """Stores with folders (memory://, sftp://) want them made first."""
        if not self.can_create:
            self._fs.makedirs(self._fs._parent(self._at(path)), exist_ok=True)


def open_elsewhere(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system of a URL outside of any store, chained ones too, and the path in it. For reading: it
    tries again by itself, and never answers from a listing that it remembers. options: as a store's. Raises
    ValueError, ImportError for a URL that nothing serves."""
    import fsspec

    protocol = url.rpartition("::")[2].partition("://")[0] if "://" in url else "file"
    _look_for_package(protocol)
    arguments = s3_arguments(options, _INPUT_ATTEMPTS) if protocol in ("s3", "s3a") else dict(options)
    if protocol in _CONDITIONAL:
        arguments["use_listings_cache"] = False
    fs, path = fsspec.url_to_fs(url, **{protocol: arguments})
    if protocol in ("s3", "s3a") and "::" not in url:
        fs.retries = 3
    return fs, path


def is_storage_error(error: BaseException) -> bool:
    """An error of the storage or its client, not a fault in this program."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in (
        "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs",
    )  # fmt: skip


def _look_for_package(protocol: str) -> None:
    """Raises ImportError that says which extra is missing."""
    import fsspec

    extra = _EXTRAS.get(protocol)
    if extra is None:
        return
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as e:
        raise ImportError(
            f"{protocol}:// needs a package that is not installed: pip install '.[{extra}]' in "
            "the project's folder, on every node"
        ) from e


def modified(info: Mapping[str, Any]) -> float | None:
    """The time of a listed object's last change, which every fsspec file system names in its own way."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            # A time without a zone is UTC in all of them.
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def s3_arguments(options: Mapping[str, Any], attempts: int = 1) -> dict[str, Any]:
    """s3fs's arguments from ours.

    endpoint_url  address of the S3 server; null: AWS
    region        null: as the environment says
    path_style    true: the bucket stands in the path, as most servers other than AWS want it
    checksums     "when_required" for servers that do not know the newer checksums; "when_supported"
    Whatever else is given goes to s3fs as it is.

    attempts: of one request, by the client itself
    """
    rest = dict(options)
    client = dict(rest.pop("client_kwargs", None) or {})
    config = dict(rest.pop("config_kwargs", None) or {})
    if region := rest.pop("region", None):
        client["region_name"] = region
    if (path_style := rest.pop("path_style", None)) is not None:
        s3 = dict(config.get("s3") or {})
        config["s3"] = {**s3, "addressing_style": "path" if path_style else "auto"}
    if checksums := rest.pop("checksums", None):
        config["request_checksum_calculation"] = checksums
        config["response_checksum_validation"] = checksums
    config.setdefault("max_pool_connections", 32)
    config["retries"] = {"total_max_attempts": attempts, "mode": "standard"}
    # With one request per read, reading does not ask for the size first.
    return {**rest, "client_kwargs": client, "config_kwargs": config, "max_concurrency": 1}


def http_status(error: BaseException) -> int | None:
    """The HTTP status behind an error of a storage client, looked for along its causes."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status is not None else None
        for name in ("status_code", "status", "code"):
            status = getattr(seen, name, None)
            if isinstance(status, int):
                return status
        seen = seen.__cause__
    return None
