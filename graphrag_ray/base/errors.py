"""Everything that can go wrong, as one tree.

    GraphRagError                      exit code 1 unless said otherwise
    ├── UsageError                     the caller has to change something: exit code 2
    │   ├── SettingsError              a settings file, --set or short form that cannot be used
    │   ├── PromptError                a prompt with a missing or unknown placeholder
    │   ├── InputError                 INPUT names nothing that can be read
    │   ├── IndexNotFound              no index, or no finished snapshot, at --root
    │   ├── LevelNotFound              a community level that the index does not have
    │   ├── DeletionRefused            the run would delete much of the index, or replace documents
    │   └── NoReports                  the index holds names and chunks alone, no communities and reports
    ├── StoreError                     storage did not do what it must
    │   ├── CorruptPart                a stored part is truncated or is not what was written
    │   ├── LockHeld                   another writer works on this index
    │   ├── LockLost                   this writer was taken over
    │   ├── SnapshotConflict           somebody else committed this snapshot number
    │   └── SnapshotRemoved            the snapshot that is being read is no longer kept
    ├── ProcessDied                    a process that worked on tables died, again and again
    ├── RunStopped                     a run ended before its end; finished work is kept
    │   ├── BudgetSpent                a limit on cost, tokens or time was reached: exit code 4
    │   ├── Interrupted                stopped by Ctrl-C: exit code 130
    │   │   └── Terminated             stopped by SIGTERM: exit code 143
    │   ├── TooManyFailures            the share of failed items passed max_failed_fraction
    │   └── ModelRefused               the endpoint refuses us as a whole (key, model, quota)
    │       └── NotConfigured          there is no way to any endpoint of a model: exit code 2
    └── CallError                      one request to a model failed
        ├── TransientCallError         worth another attempt (408, 409, 425, 429, 5xx, connection, time-out)
        ├── PermanentCallError         this request will never succeed (400, too long, content filter)
        │   └── DoesNotFit             it would, with a larger window or limit in the settings
        └── FatalCallError             no request will succeed (401, 403, unknown model, quota)
            └── NoWay                  none can be sent: no address, no key, or no header can hold it

    DialogueFailed                     a dialogue cannot use its model's replies; the item fails for good

Every error crosses process boundaries, so every one survives pickling: the message is the only
positional argument, everything else an attribute.
"""

from __future__ import annotations

FAILED_ITEMS = 3
"""Exit code that no error has: done, but some items failed."""


class GraphRagError(Exception):
    """Base of all errors raised on purpose. The message says what happened, where, and what to do."""

    exit_code = 1


class UsageError(GraphRagError):
    exit_code = 2


class SettingsError(UsageError): ...


class PromptError(UsageError): ...


class InputError(UsageError): ...


class IndexNotFound(UsageError): ...


class LevelNotFound(UsageError): ...


class DeletionRefused(UsageError): ...


class NoReports(UsageError): ...


class StoreError(GraphRagError): ...


class CorruptPart(StoreError):
    """`path`: of the damaged file, relative to its store; "" where no one file is meant."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class LockHeld(StoreError): ...


class LockLost(StoreError): ...


class SnapshotConflict(StoreError): ...


class SnapshotRemoved(StoreError):
    def after(self, calls: int, tokens: int) -> SnapshotRemoved:
        """The same, for a question that models had been asked for already."""
        paid = f". By then the question had come to {calls:,} calls and {tokens:,} tokens"
        return SnapshotRemoved(f"{self}{paid}") if calls else self


class ProcessDied(GraphRagError): ...


class RunStopped(GraphRagError): ...


class BudgetSpent(RunStopped):
    exit_code = 4


class Interrupted(RunStopped):
    exit_code = 130


class Terminated(Interrupted):
    exit_code = 143


class TooManyFailures(RunStopped): ...


class ModelRefused(RunStopped): ...


class NotConfigured(ModelRefused):
    exit_code = 2


class CallError(GraphRagError):
    """One request failed. `status` is the HTTP status, or None where there was no answer."""

    next_run = False
    """Whether the next run should ask again: what was in the way can go away with the request unchanged."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TransientCallError(CallError):
    """`retry_after_s` is what the endpoint asked for; None where it did not say."""

    next_run = True

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class PermanentCallError(CallError): ...


class DoesNotFit(PermanentCallError):
    """Settings of ours, or the endpoint's own window, are too small for the request: they can be changed."""

    next_run = True


class FatalCallError(CallError):
    def refusal(self) -> ModelRefused:
        """What a run or question ends with."""
        return ModelRefused(str(self))


class NoWay(FatalCallError):
    def refusal(self) -> ModelRefused:
        return NotConfigured(str(self))


class DialogueFailed(GraphRagError): ...
