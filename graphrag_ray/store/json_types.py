"""Types that validate the JSON files of an index, which may be untrusted or edited by hand.

Files are validated when they are read. An invalid file is reported as damaged, with the location of the first
problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, RootModel, TypeAdapter
from pydantic_core import ValidationError

T = TypeVar("T")

Number = int | float
UnixTime = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Unix seconds, up to the year 9999."""


class _StageUsage(BaseModel):
    """Usage of a model in a stage. Extra fields must be numeric."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | None] = Field(init=False)

    stage: str
    model: str
    latency_histogram: dict[int, int]
    latency_longest_s: float


class _Usage(BaseModel):
    stages: list[_StageUsage] = []
    spans: dict[str, dict[str, int]] = {}
    limits: dict[str, dict[str, float | None]] = {}
    quirks: dict[str, Any] = {}


_Flat: TypeAlias = dict[str, Number | None]
_ByHierarchy: TypeAlias = dict[str, dict[str, Number | _Flat | None]]


class _Counts(RootModel[dict[str, Number | _Flat | _ByHierarchy | None]]): ...


class _Step(BaseModel):
    """The result of a step. A table is a list of groups of parts, each given as (path, rows, bytes)."""

    fingerprint: str = ""
    tables: dict[str, list[list[tuple[str, NonNegativeInt, NonNegativeInt]]]] = {}
    counts: dict[str, Any] = {}
    made_from: dict[str, list[str]] = {}


class _Run(BaseModel):
    input: str = ""
    inputs: list[str] = []
    code: str | None = None
    seconds: dict[str, float] = {}
    changes: dict[str, dict[str, int]] = {}
    asked: dict[str, int] = {}


def _valid_for(model: type[BaseModel]) -> AfterValidator:
    """Validate against a model but return the value unchanged."""

    def check(value: Mapping[str, Any]) -> Mapping[str, Any]:
        model.model_validate(value)
        return value

    return AfterValidator(check)


Counts = Annotated[Mapping[str, Any], _valid_for(_Counts)]
Usage = Annotated[Mapping[str, Any], _valid_for(_Usage)]
Step = Annotated[Mapping[str, Any], _valid_for(_Step)]
RunInfo = Annotated[Mapping[str, Any], _valid_for(_Run)]


def read_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON, checking the types of its fields and ignoring unknown keys.

    Raises:
        ValueError: With a one-line message that locates the first problem.
    """
    try:
        value: T = _adapter(kind).validate_python(data)
        return value
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"])) or "its content"
        raise ValueError(f"{location}: {first['msg']}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
