"""What the JSON files of an index may say. An index can be a stranger's, or mended by hand: what is of
another form is told as damage of that file, with its place, and not by whatever reads it first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError

T = TypeVar("T")

Amount = int | float
AtLeast0 = Annotated[int, Field(ge=0)]
At = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Unix seconds, up to the year 9999."""


class _Row(BaseModel):
    """A row of the accounts: numbers, beside these."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Amount | None] = Field(init=False)

    stage: str
    model: str
    latency_histogram: dict[int, int]
    latency_longest_s: float


class _Usage(BaseModel):
    stages: list[_Row] = []
    spans: dict[str, dict[str, int]] = {}
    limits: dict[str, dict[str, float | None]] = {}
    quirks: dict[str, Any] = {}


_Flat: TypeAlias = dict[str, Amount | None]
_OfHierarchies: TypeAlias = dict[str, dict[str, Amount | _Flat | None]]


class _Counts(RootModel[dict[str, Amount | _Flat | _OfHierarchies | None]]): ...


class _Step(BaseModel):
    """A step's result: parts as (path, rows, bytes)."""

    fingerprint: str = ""
    tables: dict[str, list[list[tuple[str, AtLeast0, AtLeast0]]]] = {}
    counts: dict[str, Any] = {}
    made_from: dict[str, list[str]] = {}


class _Run(BaseModel):
    input: str = ""
    inputs: list[str] = []
    code: str | None = None
    seconds: dict[str, float] = {}
    changes: dict[str, dict[str, int]] = {}
    asked: dict[str, int] = {}


def _like(model: type[BaseModel]) -> AfterValidator:
    """The value as it is, where it has the model's form."""

    def check(value: Mapping[str, Any]) -> Mapping[str, Any]:
        model.model_validate(value)
        return value

    return AfterValidator(check)


Counts = Annotated[Mapping[str, Any], _like(_Counts)]
Usage = Annotated[Mapping[str, Any], _like(_Usage)]
Step = Annotated[Mapping[str, Any], _like(_Step)]
RunTold = Annotated[Mapping[str, Any], _like(_Run)]


def read_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass whose fields have the types that it says; keys that it does not know are left out. Raises
    ValueError, which names the place in one line."""
    try:
        found: T = _adapter(kind).validate_python(data)
        return found
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "its content"
        raise ValueError(f"{place}: {first['msg']}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
