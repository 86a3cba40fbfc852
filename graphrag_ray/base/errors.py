"""The exception hierarchy.

    GraphRagError                      exit code 1 unless stated otherwise
    ├── UsageError                     the caller has to change something: exit code 2
    │   ├── SettingsError              invalid settings file, --set or option
    │   ├── PromptError                unreadable prompt, or a missing or unknown placeholder
    │   ├── InputError                 INPUT contains nothing that can be read
    │   ├── IndexNotFound              no index, or no finished snapshot, at --root
    │   ├── LevelNotFound              community level that the index does not have
    │   ├── DeletionRefused            the run would delete much of the index, or replace documents
    │   └── ReportsMissing             the index has no communities and reports
    ├── StoreError                     storage failure
    │   ├── CorruptPart                a stored part is truncated or modified
    │   ├── LockHeld                   another process is writing this index
    │   ├── LockLost                   another writer took over the lock
    │   ├── SnapshotConflict           another writer committed this snapshot number
    │   └── SnapshotRemoved            the snapshot was removed while a query was reading it
    ├── ProcessDied                    a worker process died repeatedly
    ├── RunStopped                     the run stopped early; finished items are stored
    │   ├── BudgetSpent                the limit on cost, tokens or time was reached: exit code 4
    │   ├── Interrupted                Ctrl-C: exit code 130
    │   │   └── Terminated             SIGTERM: exit code 143
    │   ├── TooManyFailures            more items failed than max_failed_fraction allows
    │   └── ModelUnavailable           the endpoint refuses all requests (key, model, quota)
    │       └── NotConfigured          a model has no usable endpoint: exit code 2
    └── CallError                      one request to a model failed
        ├── TransientCallError         may succeed on retry (408, 409, 425, 429, 5xx, connection, timeout)
        ├── PermanentCallError         this request will never succeed (400, too long, content filter)
        │   └── RequestTooLarge        may succeed with a larger window or limit in the settings
        └── FatalCallError             no request will succeed (401, 403, unknown model, quota)
            └── NoEndpoint             no request can be sent: no address, no key or an invalid header

    DialogueFailed                     the model's replies are unusable; the item fails permanently

Errors are pickled between processes, so the message must be their only positional argument.
"""

from __future__ import annotations

EXIT_FAILED_ITEMS = 3
"""Exit code of a completed command with failed items."""


class GraphRagError(Exception):
    """Base class of all expected errors."""

    exit_code = 1


class UsageError(GraphRagError):
    exit_code = 2


class SettingsError(UsageError): ...


class PromptError(UsageError): ...


class InputError(UsageError): ...


class IndexNotFound(UsageError): ...


class LevelNotFound(UsageError): ...


class DeletionRefused(UsageError): ...


class ReportsMissing(UsageError): ...


class StoreError(GraphRagError): ...


class CorruptPart(StoreError):
    """A damaged part. `path` is the file, relative to its store, or "" if no single file is damaged."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class LockHeld(StoreError): ...


class LockLost(StoreError): ...


class SnapshotConflict(StoreError): ...


class SnapshotRemoved(StoreError):
    def with_usage(self, calls: int, tokens: int) -> SnapshotRemoved:
        """Return this error with the usage of the interrupted query appended to the message."""
        usage = f". The question had used {calls:,} calls and {tokens:,} tokens"
        return SnapshotRemoved(f"{self}{usage}") if calls else self


class ProcessDied(GraphRagError): ...


class RunStopped(GraphRagError): ...


class BudgetSpent(RunStopped):
    exit_code = 4


class Interrupted(RunStopped):
    exit_code = 130


class Terminated(Interrupted):
    exit_code = 143


class TooManyFailures(RunStopped): ...


class ModelUnavailable(RunStopped): ...


class NotConfigured(ModelUnavailable):
    exit_code = 2


class CallError(GraphRagError):
    """A failed request. `status` is the HTTP status, or None without a response."""

    retry_next_run = False
    """Whether the next run should retry the unchanged request."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TransientCallError(CallError):
    """A transient failure. `retry_after_s` is the Retry-After header, if there was one."""

    retry_next_run = True

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class PermanentCallError(CallError): ...


class RequestTooLarge(PermanentCallError):
    """The request exceeds a limit that can be raised, in our settings or at the endpoint."""

    retry_next_run = True


class FatalCallError(CallError):
    def as_run_error(self) -> ModelUnavailable:
        """Return the error to stop the run or query with."""
        return ModelUnavailable(str(self))


class NoEndpoint(FatalCallError):
    def as_run_error(self) -> ModelUnavailable:
        return NotConfigured(str(self))


class DialogueFailed(GraphRagError): ...
