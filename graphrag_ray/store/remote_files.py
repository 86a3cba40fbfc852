"""Objects at any remote fsspec URL: S3-compatible stores, and gs:// and az:// with extra packages.

Only `files.Store` retries; retries by s3fs and botocore are turned off. aiohttp and proxies may still resend
a PUT when the connection breaks. `files.Store.create` handles a conditional create that is refused because it
was sent twice.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

# Protocols whose fsspec file system supports conditional puts (`mode="create"`).
_CONDITIONAL = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
# s3fs sends objects of up to twice this size in one request. It sends larger ones in parts, which become
# visible together at the end.
_SINGLE_PUT_BYTES = 1 << 30
_EXTRAS = {"gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}  # Our extra for each protocol.
_INPUT_ATTEMPTS = 4  # Attempts by the client itself (about 3 s), for requests outside of a store.

_TRANSIENT_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNO = {errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)}
# Names of error classes or their base classes, because the packages that define them may not be installed.
_TRANSIENT_NAMES = {
    "ClientConnectionError", "ClientPayloadError",  # aiohttp
    "ConnectionError", "HTTPClientError", "IncompleteReadError",  # botocore
    "ResponseParserError",  # botocore: a 503 whose body is not XML.
    "ServiceRequestError", "ServiceResponseError",  # azure
    "TransportError",  # google
}  # fmt: skip


class ObjectFiles:
    """The objects below an fsspec URL. Objects become visible as a whole."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        import fsspec  # Imported lazily, here and below: local files do not need it.

        protocol = url.split("://", 1)[0]
        self._is_s3 = protocol in ("s3", "s3a")
        self.can_create = protocol in _CONDITIONAL
        arguments = s3_arguments(options) if self._is_s3 else dict(options)
        _check_package(protocol)
        # Other code in this process may use fsspec, too: do not share its cached listings and instances.
        self._fs = fsspec.filesystem(
            protocol, **arguments, use_listings_cache=False, skip_instance_cache=True
        )
        if self._is_s3:
            self._fs.retries = 1
        self.root = str(self._fs._strip_protocol(url)).rstrip("/")

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._absolute(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        try:
            return bytes(self._fs.cat_file(self._absolute(path), start=start, end=end))
        except Exception as e:
            if http_status(e) == 416:  # Like a local file, return nothing beyond the end.
                return b""
            raise

    def write(self, path: str, data: bytes, **arguments: Any) -> None:
        if self._is_s3:
            arguments["chunksize"] = _SINGLE_PUT_BYTES
        self._make_parents(path)
        self._fs.pipe_file(self._absolute(path), data, **arguments)

    def upload(self, path: str, source: str) -> None:
        self._make_parents(path)
        self._fs.put_file(source, self._absolute(path))

    def create(self, path: str, data: bytes) -> bool:
        """Put an object unless it exists. Without conditional puts, this is a check and then a put."""
        if not self.can_create and self.size(path) is not None:
            return False
        try:
            self.write(path, data, **({"mode": "create"} if self.can_create else {}))
        except FileExistsError:
            return False
        except Exception as e:
            # s3fs raises FileExistsError only if the server names the condition. Ceph's gateway does not.
            if http_status(e) == 412:
                return False
            raise
        return True

    def size(self, path: str) -> int | None:
        try:
            if self._is_s3:
                # `info` would send a second request to find out whether a missing object is a folder.
                bucket, key, _ = self._fs.split_path(self._absolute(path))
                return int(self._fs.call_s3("head_object", Bucket=bucket, Key=key)["ContentLength"])
            info = self._fs.info(self._absolute(path))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def list(self, folder: str) -> Iterator[tuple[str, int, float | None]]:
        """Yield (path, bytes, modification time) of all objects below a folder."""
        if self._is_s3 and folder:
            # For an empty folder, s3fs would send two more requests to see whether it is an object.
            objects = self._fs.find(self.root, prefix=f"{folder}/", detail=True)
        else:
            objects = self._fs.find(self._absolute(folder) if folder else self.root, detail=True)
        for name, info in objects.items():
            path = str(name).removeprefix(self.root + "/")
            if info["type"] == "file" and (not folder or path.startswith(folder + "/")):
                yield path, int(info["size"]), modified_time(info)

    def leftovers(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield nothing, because incomplete objects do not exist."""
        return iter(())

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._absolute(path))

    def is_transient(self, error: BaseException) -> bool:
        """Return whether a retry may help: the server is busy or unreachable, or hung up."""
        if isinstance(error, FileNotFoundError | FileExistsError | PermissionError):
            return False
        if isinstance(error, TimeoutError | ConnectionError):
            return True
        # Checked before the status, because aiohttp reports a truncated response as a 400.
        if any(base.__name__ in _TRANSIENT_NAMES for base in type(error).__mro__):
            return True
        status = http_status(error)
        if status is not None:
            return status in _TRANSIENT_STATUS
        return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _make_parents(self, path: str) -> None:
        if not self.can_create:  # These file systems have real folders (memory://, sftp://).
            self._fs.makedirs(self._fs._parent(self._absolute(path)), exist_ok=True)


def open_external(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a URL outside of any store, for reading, and the path in it.

    The URL may be chained. `options` are the same as for a `Store`. The file system retries by itself and
    does not cache listings. Raises ValueError for an unknown protocol and ImportError if its package is not
    installed.
    """
    import fsspec

    protocol = url.rpartition("::")[2].partition("://")[0] if "://" in url else "file"
    _check_package(protocol)
    arguments = s3_arguments(options, _INPUT_ATTEMPTS) if protocol in ("s3", "s3a") else dict(options)
    if protocol in _CONDITIONAL:
        arguments["use_listings_cache"] = False
    fs, path = fsspec.url_to_fs(url, **{protocol: arguments})
    if protocol in ("s3", "s3a") and "::" not in url:
        fs.retries = 3
    return fs, path


def is_storage_error(error: BaseException) -> bool:
    """Return whether an error comes from the storage or its client rather than from a bug."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in (
        "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs",
    )  # fmt: skip


def _check_package(protocol: str) -> None:
    """Raise an ImportError that names the missing extra."""
    import fsspec

    if extra := _EXTRAS.get(protocol):
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError as e:
            raise ImportError(
                f"{protocol}:// needs a package that is not installed. On every node, run pip install "
                f"'.[{extra}]' in the project's folder."
            ) from e


def modified_time(info: Mapping[str, Any]) -> float | None:
    """Return a listed object's modification time in Unix seconds. Every file system names it differently."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def s3_arguments(options: Mapping[str, Any], attempts: int = 1) -> dict[str, Any]:
    """Translate storage options into arguments of s3fs.

    Args:
        options: `region`; `path_style` (true: the bucket is part of the path, as most servers other than AWS
            require); `checksums` ("when_required" for servers that do not support the newer checksums,
            otherwise "when_supported"). All others, such as `endpoint_url`, are passed on.
        attempts: Maximum number of attempts per request by the client itself.
    """
    arguments = dict(options)
    client = dict(arguments.pop("client_kwargs", None) or {})
    config = dict(arguments.pop("config_kwargs", None) or {})
    if region := arguments.pop("region", None):
        client["region_name"] = region
    if (path_style := arguments.pop("path_style", None)) is not None:
        s3 = dict(config.get("s3") or {})
        config["s3"] = {**s3, "addressing_style": "path" if path_style else "auto"}
    if checksums := arguments.pop("checksums", None):
        config["request_checksum_calculation"] = checksums
        config["response_checksum_validation"] = checksums
    config.setdefault("max_pool_connections", 32)
    config["retries"] = {"total_max_attempts": attempts, "mode": "standard"}
    # With a concurrency of 1, s3fs does not request the size before a read.
    return {**arguments, "client_kwargs": client, "config_kwargs": config, "max_concurrency": 1}


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of a storage client's error or of one of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status is not None else None
        for name in ("status_code", "status", "code"):
            status = getattr(cause, name, None)
            if isinstance(status, int):
                return status
        cause = cause.__cause__
    return None
