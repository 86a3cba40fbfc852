"""Pass arbitrary text to every public function of the pure folders that takes text.

No text may raise an error that is not ours, give a result that cannot be stored, or take more than about
linear time. `make fuzz` runs more rounds, also on passages of real corpora.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import importlib
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
from hostile_text import GROWING, TOP, texts
from hypothesis import HealthCheck, given, seed, settings
from linear_time import too_slow
from pattern_texts import growing, patterns_of
from text_entry_points import ENTRY_POINTS, EntryPoint

ROUNDS = int(os.environ.get("GRAPHRAG_RAY_FUZZ_ROUNDS", "0"))
"""Rounds of the second tier per folder. 0 selects the first tier, which draws the same texts in every run."""
FIRST_ROUNDS = 60
BLOCK = 1_000
"""Rounds after which Hypothesis is restarted, because its memory of earlier rounds grows."""

PURE = [folder for folder in ENTRY_POINTS if (TOP / "graphrag_ray" / folder).is_dir()]
OF_TEXT = ("str", "bytes", "BinaryIO")


# Errors


def storable(value: Any) -> None:
    """Raises UnicodeEncodeError if a text in a result cannot be encoded."""
    if isinstance(value, str):
        value.encode()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            storable(getattr(value, field.name))
    elif isinstance(value, Mapping):
        storable([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            storable(item)


def through(entry_points: Mapping[str, EntryPoint], rounds: int, block: int) -> None:
    """Send texts through all functions. An error names the function, and Hypothesis shrinks the text."""

    @seed(block)
    @settings(max_examples=rounds, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(texts(real=block > 0))
    def send(text: str) -> None:
        for name, call in entry_points.items():
            try:
                storable(call(text))
            except Exception as e:
                e.add_note(f"entry point: {name}")
                raise

    send()


@pytest.mark.timeout(0 if ROUNDS else 240)
@pytest.mark.parametrize("folder", ENTRY_POINTS)
def test_no_text_raises_a_foreign_error(folder: str):
    if not ROUNDS:
        through(ENTRY_POINTS[folder], FIRST_ROUNDS, 0)
    for block in range(1, 1 + -(-ROUNDS // BLOCK)):
        through(ENTRY_POINTS[folder], min(BLOCK, ROUNDS), block)


# Time

SMALL = 4_000 if ROUNDS else 1_000
SHARE = 1 if ROUNDS else 8
"""The first tier tests every nth repetition, and different ones for the next entry point."""
OWN = ("graph: names", "graph: schema")
"""Entry points for YAML files that only an index's owner writes. The YAML parser takes quadratic time."""


def numbered(length: int) -> str:
    """Sentences with different names, so that none is skipped as a repetition."""
    return "".join(f"Name{i} Surname met Other{i} Person in Place{i}.\n" for i in range(length // 45))


def timed() -> list[Any]:
    named = (
        (f"{folder}: {name}", call)
        for folder, entry_points in ENTRY_POINTS.items()
        for name, call in entry_points.items()
    )
    mine = [(name, call) for name, call in named if name not in OWN]
    return [pytest.param(call, GROWING[i % SHARE :: SHARE], id=name) for i, (name, call) in enumerate(mine)]


@pytest.mark.timeout(0 if ROUNDS else 240)
@pytest.mark.parametrize(("call", "units"), timed())
def test_time_grows_linearly_with_the_text(call: EntryPoint, units: list[str]):
    call("Warm.")
    slow = [
        f"{unit!r} × {told}"
        for unit in units
        if (told := too_slow(call, unit.__mul__, max(1, SMALL // len(unit))))
    ]
    slow += [f"sentences of {told}" for told in [too_slow(call, numbered, SMALL)] if told]
    assert not slow, "; ".join(slow)


# Time for texts built from the patterns of each module

NO_TEXT = frozenset(("logs", "prompts", "settings_file", "settings_text", "text_files", "user_settings"))
"""Modules of `base` whose functions of one string are given places or names, and do I/O."""


def modules_of(folders: Iterable[str]) -> Iterator[tuple[Path, ModuleType]]:
    for folder in folders:
        for path in sorted((TOP / "graphrag_ray" / folder).rglob("*.py")):
            name = ".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__")
            yield path, importlib.import_module(name)


def functions_of_one_text() -> Iterator[Any]:
    """Yield all functions of the pure folders, private ones too, whose only required argument is text."""
    for path, module in modules_of((*PURE, "base", "store/search")):
        if path.stem in NO_TEXT:
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            name = f"{path.parent.name}/{path.name}: {getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef) and _needs_one_text(node):
                found = getattr(module, node.name)
                yield pytest.param(getattr(found, "__wrapped__", found), module, id=name)


def _needs_one_text(function: ast.FunctionDef) -> bool:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    needed = positional[: len(positional) - len(given.defaults)]
    needed += [a for a, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    types = [ast.unparse(a.annotation) if a.annotation else "" for a in needed]
    return len(types) == 1 and types[0].split(" | ")[0] == "str"


def whatever(function: Callable[[str], Any]) -> Callable[[str], None]:
    """Call it, ignoring errors, which other tests check, and consuming generators."""

    def run(text: str) -> None:
        with suppress(Exception):
            found = function(text)
            if isinstance(found, Iterator):
                deque(found, maxlen=0)

    return run


def slow_texts(do: Callable[[str], Any], makers: Iterable[Callable[[int], str]], sizes: Sequence[int]) -> str:
    """Short texts first: on a long one, anything worse than quadratic would take hours."""
    for make in makers:
        for size in sizes:
            if told := too_slow(do, make, size):
                return f"{make(20)!r}, with {told}"
    return ""


@pytest.mark.parametrize(("function", "module"), list(functions_of_one_text()))
def test_no_text_built_from_a_functions_patterns_is_slow(function: Callable[[str], Any], module: ModuleType):
    makers = [m for p in patterns_of(module).values() for m in growing(p.pattern, p.flags & re.VERBOSE)]
    assert not slow_texts(whatever(function), makers, (6, 50, 250, 1_000))


@pytest.mark.parametrize(
    "folder", sorted(p.parent.name for p in (TOP / "graphrag_ray").glob("*/__init__.py"))
)
def test_no_pattern_backtracks_exponentially(folder: str):
    """Adjacent repetitions that accept the same character backtrack. Checks every folder."""
    slow = []
    for path, module in modules_of([folder]):
        for pattern in patterns_of(module).values():
            makers = growing(pattern.pattern, pattern.flags & re.VERBOSE)
            for match in (pattern.match, pattern.fullmatch):
                if told := slow_texts(match, makers, (6, 50, 500, 4_000)):
                    slow.append(f"{path.name}: {pattern.pattern!r} on {told}")
    assert not slow, "\n".join(slow)


# Completeness


def functions_of_text() -> Iterator[tuple[str, CodeType]]:
    """Yield public functions and methods of the pure folders with a parameter whose type contains text."""
    for folder in PURE:
        for path in sorted((TOP / "graphrag_ray" / folder).glob("*.py")):
            module = importlib.import_module(
                f"graphrag_ray.{folder.replace('/', '.')}.{path.stem}".removesuffix(".__init__")
            )
            for node in ast.parse(path.read_text("utf-8")).body:
                inside = node.body if isinstance(node, ast.ClassDef) else [node]
                owner = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
                for one in inside:
                    if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and _takes_text(one):
                        found = getattr(owner, one.name)
                        code = getattr(found, "__wrapped__", found).__code__
                        yield f"{folder}/{path.name}: {getattr(node, 'name', '')}.{one.name}", code


def _takes_text(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    types = [
        node.id
        for argument in arguments
        if argument.annotation
        for node in ast.walk(argument.annotation)
        if isinstance(node, ast.Name)
    ]
    return any(name in OF_TEXT for name in types)


SAMPLE = (
    "# The mill\n\nANN LEE: Did “Kestrel Marine” (KM) found the <b>mill</b> in Denholm in March 2014? "
    "BO DAHL: It did, said Orla Quist. [Data: Reports (1)] Neural networks learn. A neural network is old.\n"
)
REPLIES = (
    SAMPLE,
    '("entity"<|>ORLA QUIST<|>PERSON<|>She leads.)##("relationship"<|>A<|>B<|>They met.<|>3)##<|COMPLETE|>',
    '("claim"<|>ACME<|>NONE<|>FOUNDING<|>TRUE<|>2014-03<|>NONE<|>Founded.<|>“Founded.”)<|COMPLETE|>',
    '{"title": "T", "summary": "S [Data: Entities (1)]", "rating": 5, "rating_explanation": "R", "findings": '
    '[{"summary": "F", "explanation": "E"}], "answer": "A", "score": 50, "follow_ups": [{"question": "Q?", '
    '"score": 90}], "points": [{"description": "P", "score": 9}], "ratings": [{"id": 1, "rating": 4}]}',
    "<ANSWER_HELPFULNESS> 80 </ANSWER_HELPFULNESS> The mill [Data: Reports (1)].",
    "ALICE: [ANN, BO]",
    "path=a*",
    "reply_tokens=1.5",
)
NOT_REACHED = {
    "graph/stable_batches.py": "our own hashes",
    "query/methods/budget.py": "names of models",
    "query/methods/methods.py": "names of methods",
    "graph/report_reuse.py": "ids of chunks",
    "indexing/forecast/bounds.py": "names of prompts and assumptions",
    "indexing/forecast/forecast.py": "names of assumptions, stages and prompts",
}
"""Files with functions whose text cannot come from outside."""


def test_every_function_that_takes_text_is_driven():
    wanted = dict(functions_of_text())
    reached: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            reached.add(frame.f_code)

    for cached in (o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)):
        if getattr(cached, "__module__", "").startswith("graphrag_ray"):
            cached.cache_clear()
    sys.setprofile(note)
    try:
        for entry_points in ENTRY_POINTS.values():
            for call in entry_points.values():
                for reply in REPLIES:
                    call(reply)
    finally:
        sys.setprofile(None)
    missed = [name for name, code in wanted.items() if code not in reached]
    assert {name for name in missed if name.partition(":")[0] not in NOT_REACHED} == set()
