"""Options of the endpoint, set on the command line or at run time (`POST /settings`)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

EPILOG = """
examples:
  the limits of the GraphRAG paper's run, 1% of calls eight times slower:
    python benchmarks/endpoint --port 8000 --rpm 10000 --tpm 2000000 --ttft 0.5 --tokens-per-s 60 \\
        --jitter 0.2 --tail 0.01 --tail-factor 8
  the same, ten times faster (a client's limits are then 100000 and 20000000 a minute):
    python benchmarks/endpoint --port 8000 --rpm 10000 --tpm 2000000 --speed 10
  faults:
    python benchmarks/endpoint --errors 0.02 --drops 0.01 --hangs 0.002 --garbage 0.01 --truncate 0.01
  a self-hosted server without limits, best at 64 calls at a time:
    python benchmarks/endpoint --batch 64 --tokens-per-s 40
  HTTP overhead only, for measuring the client:
    python benchmarks/endpoint --replies fixed --latency 3

while it runs (addresses without /v1):
  curl -s localhost:8000/stats
  curl -s localhost:8000/stats/series
  curl -s -X POST localhost:8000/stats/reset            # ?windows also resets the limits' windows
  curl -s -X POST localhost:8000/settings -d '{"batch": 16, "rpm": null}'

On SIGTERM or SIGINT, it prints its statistics to standard error and exits.
"""


def option(default: Any, help_: str, *, least: float = 0.0, most: float = math.inf) -> Any:
    return field(default=default, metadata={"help": help_, "least": least, "most": most})


def probability(default: float, help_: str) -> Any:
    return option(default, help_, most=1.0)


@dataclass(frozen=True)
class Options:
    """All options can be changed at run time. Seconds are those at speed 1."""

    rpm: float | None = option(None, "requests admitted in any 60 s; none: no limit", least=1)
    tpm: float | None = option(None, "tokens admitted in any 60 s; none: no limit", least=1)
    charge: str = option(
        "actual", "tokens charged for a call: prompt + `actual` completion, or + `max_tokens`"
    )
    headers: bool = option(True, "send x-ratelimit-* headers")
    ttft: float = option(0.5, "seconds to the first token")
    tokens_per_s: float = option(60.0, "tokens generated a second in one call", least=1e-6)
    latency: float | None = option(
        None, "seconds a call takes regardless of its length; replaces --ttft and --tokens-per-s"
    )
    embedding_s: float = option(0.1, "seconds an embedding call takes")
    jitter: float = option(0.0, "sigma of the lognormal factor (median 1) on each call's time")
    tail: float = probability(0.0, "share of calls that take --tail-factor times as long")
    tail_factor: float = option(8.0, "see --tail")
    speed: float = option(1.0, "divides every duration, including the window of the limits", least=1e-6)
    slots: int | None = option(None, "concurrent calls, the rest queue in order; none: no limit", least=1)
    batch: int | None = option(
        None, "concurrent calls at full speed; n calls beyond it run at batch/n; none: no limit", least=1
    )
    errors: float = probability(0.0, "share of calls answered with 500")
    drops: float = probability(0.0, "share of calls whose connection is closed without an answer")
    hangs: float = probability(0.0, "share of calls that are not answered for --hang-s")
    hang_s: float = option(600.0, "seconds until a hanging call's connection is closed")
    garbage: float = probability(
        0.0, "share of 200s that are not JSON, or whose text is nonsense (half each)"
    )
    truncate: float = probability(0.0, "share of 200s whose body or text is truncated (half each)")
    gleanings: float = probability(0.5, "share of glean checks answered with Y")
    replies: str = option("written", "`written`: drawn from the request's text; `fixed`: one per kind")
    count: str = option("o200k_base", "vocabulary for counting tokens, or `chars`: four bytes per token")
    dimensions: int = option(256, "dimensions of embeddings if the request does not set them", least=1)
    seed: int = option(1, "seed of latencies, faults and replies", least=-math.inf)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            least, most = f.metadata["least"], f.metadata["most"]
            if isinstance(value, int | float) and not least <= value <= most:
                raise ValueError(f"{f.name} must be from {least:g} to {most:g}, not {value:g}")
        if self.charge not in ("actual", "max_tokens"):
            raise ValueError(f"charge must be actual or max_tokens, not {self.charge}")
        if self.replies not in ("written", "fixed"):
            raise ValueError(f"replies must be written or fixed, not {self.replies}")
        if self.count not in ("o200k_base", "cl100k_base", "chars"):
            raise ValueError(f"count must be o200k_base, cl100k_base or chars, not {self.count}")
        if self.errors + self.drops + self.hangs + self.garbage + self.truncate > 1:
            raise ValueError("the shares of faults add up to more than 1")

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Copy with other values from JSON. Raises ValueError for invalid values."""
        types = {f.name: str(f.type) for f in fields(self)}
        values = {}
        for name, value in changes.items():
            if name not in types:
                raise ValueError(f"Unknown setting {name!r}. Choose from: {', '.join(types)}")
            values[name] = _value(name, types[name], value)
        return replace(self, **values)


def _kind(type_: str) -> str:
    """Return "float" for "float | None"."""
    return type_.partition(" ")[0]


def _value(name: str, type_: str, value: Any) -> Any:
    if value is None and "None" in type_:
        return None
    kind = _kind(type_)
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value).__name__ != kind:
        raise ValueError(f"{name} must be {type_.replace(' | ', ' or ')}, not {value!r}")
    return value


def _parse(type_: str) -> Any:
    def parse(text: str) -> Any:
        if text.lower() in ("none", "null") and "None" in type_:
            return None
        return {"float": float, "int": int, "str": str}[_kind(type_)](text)

    parse.__name__ = type_
    return parse


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python benchmarks/endpoint",
        description="A simulated OpenAI-compatible endpoint for benchmarks: limits, latency, faults, "
        "statistics. Prints its base URL when it is ready.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--port", type=int, default=0, help="0: any free port (default)")
    p.add_argument("--log", metavar="FILE", help="log file with one JSON object per call (see ledger.py)")
    for f in fields(Options):
        flag, type_ = "--" + f.name.replace("_", "-"), str(f.type)
        if type_ == "bool":
            p.add_argument(flag, action=argparse.BooleanOptionalAction, default=f.default,
                           help=f.metadata["help"])  # fmt: skip
        else:
            p.add_argument(flag, type=_parse(type_), default=f.default, metavar=_kind(type_),
                           help=f"{f.metadata['help']} (default: %(default)s)")  # fmt: skip
    return p


def read(arguments: list[str]) -> tuple[argparse.Namespace, Options]:
    """Parse the command line. Exits with a message if it is invalid."""
    p = parser()
    args = p.parse_args(arguments)
    try:
        return args, Options(**{f.name: getattr(args, f.name) for f in fields(Options)})
    except ValueError as e:
        p.error(str(e))
