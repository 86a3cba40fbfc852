"""Does every change of a stage's pure modules come with a decision on the stage's version?

Usage: python checks/stage_versions.py [--record]

`stage_versions.json` holds, for each stage of `graphrag_ray/base/declarations.py`, its version and a hash of
what its tables are made by: its file in `indexing/stages/` and all that this imports from the pure rooms.
Comments, docstrings and layout are no part of it. Where code has changed and the version has not, this fails:
either the tables of the stage differ now, and its version is to be raised, or they do not, and `--record`
says so.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from graphrag_ray.base.declarations import STAGES

ROOT = Path(__file__).parents[1]
PURE = ("corpus", "graph", "query.methods", "store.search", "indexing.stages")
ALSO = ("graphrag_ray.base.ids", "graphrag_ray.base.records")
STAGE_FILES = "graphrag_ray/indexing/stages"
RECORD = Path(__file__).with_suffix(".json")


def modules_of(stage: str) -> list[str]:
    """The modules, sorted, that the tables of a stage are made by."""
    files = [STAGES[stage].module or f"{stage}_stage"]
    if stage == "finish":  # hierarchies write their tables there
        files += [path.stem for path in sorted((ROOT / STAGE_FILES).glob("*_hierarchy.py"))]
    left = [f"{STAGE_FILES.replace('/', '.')}.{name}" for name in files]
    found = set(left)
    while left:
        for name in imported_by(left.pop()):
            if name not in found and is_pure(name) and not is_stage(name):
                found.add(name)
                left.append(name)
    return sorted(found)


def is_pure(name: str) -> bool:
    return name in ALSO or any(name.startswith(f"graphrag_ray.{room}.") for room in PURE)


def is_stage(name: str) -> bool:
    """Another stage has its own version."""
    return name.startswith("graphrag_ray.indexing.stages.") and name.endswith("_stage")


@cache
def imported_by(module: str) -> list[str]:
    return list(_imports(ast.parse(path_of(module).read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("graphrag_ray."):
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                yield name if path_of(name).exists() else str(node.module)


def path_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


@cache
def meaning(path: Path) -> str:
    """A hash of the syntax tree without docstrings. The same for all versions of Python that read it."""
    digest = hashlib.sha256()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("")  # a docstring
    for node in ast.walk(tree):
        digest.update(type(node).__name__.encode())
        for name, value in ast.iter_fields(node):
            if isinstance(value, (str, bytes, int, float, complex)):
                digest.update(f" {name}={value!r}".encode("utf-8", "backslashreplace"))
            elif isinstance(value, list) and value:
                digest.update(f" {name}:{len(value)}".encode())
    return digest.hexdigest()


def code_of(stage: str) -> str:
    hashed = (f"{name} {meaning(path_of(name))}\n" for name in modules_of(stage))
    return hashlib.sha256("".join(hashed).encode()).hexdigest()[:16]


def main() -> str:
    """What is wrong, or "" where nothing is."""
    now = {name: {"version": stage.version, "code": code_of(name)} for name, stage in STAGES.items()}
    if "--record" in sys.argv[1:]:
        RECORD.write_text(json.dumps(now, indent=1) + "\n")
        return ""
    before = json.loads(RECORD.read_text())
    undecided = [n for n in now if n in before and before[n] != now[n] and not raised(before[n], now[n])]
    if undecided:
        return (
            f"Code that makes the tables of these stages has changed: {', '.join(undecided)}. Where the "
            "tables differ now, raise the stage's version in graphrag_ray/base/declarations.py, so that "
            "indexes are brought up to date. Then, or where they are the same: "
            "python checks/stage_versions.py --record"
        )
    if before != now:
        return "A version was raised, or a stage was added: python checks/stage_versions.py --record"
    return ""


def raised(before: dict[str, object], now: dict[str, object]) -> bool:
    return int(str(now["version"])) > int(str(before["version"]))


if __name__ == "__main__":
    sys.exit(main() or 0)
