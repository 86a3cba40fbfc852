"""Change values in the text of a settings file, and keep its comments and order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Changes = Mapping[tuple[str, ...], Any]
"""New values by the path of their key: (section, key), or (key,) at the top level."""


def edit_settings(text: str, changes: Changes) -> str | None:
    """Set values in a YAML file. Lists and mappings are written one entry per line.

    Returns None if the file is too unusual for an edit to be safe: it is not a mapping, contains aliases, or
    does not read back as the old values with these changes.
    """
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            return None
        expected = deepcopy(yaml.safe_load(text) or {})
        edited = text if not text or text.endswith("\n") else text + "\n"
        for path, value in changes.items():
            edited = _set(edited, path, value)
            assign(expected, path, value)
        return edited if yaml.safe_load(edited) == expected else None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def assign(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value in settings data."""
    *sections, key = path
    for name in sections:
        data[name] = data.get(name) or {}
        data = data[name]
    data[key] = value


def _set(text: str, path: tuple[str, ...], value: Any) -> str:
    import yaml

    node: Any = yaml.compose(text, yaml.SafeLoader)
    indent = 0
    for depth, name in enumerate(path):
        if node is None:  # an empty file, or only comments
            return text + _lines(path[depth:], value, indent)
        pair = next((p for p in node.value if p[0].value == name), None)
        if pair is None:
            return _insert(text, node, path[depth:], value, depth)
        key, child = pair
        indent = key.start_mark.column
        is_last = depth == len(path) - 1
        if is_last or not isinstance(child, yaml.MappingNode) or not child.value:
            rendered = {path[-1]: value} if not is_last else value
            return _replace(text, key, child, rendered, indent, in_flow=bool(depth and node.flow_style))
        node = child
    raise ValueError("the path is empty")


def _insert(text: str, parent: Any, path: tuple[str, ...], value: Any, depth: int) -> str:
    """Insert a missing key: a new section at the end, a new key at the start of its section."""
    first = parent.value[0][0].start_mark
    if parent.flow_style:
        nested = value if len(path) == 1 else {path[1]: value}
        return f"{text[: first.index]}{json.dumps(path[0])}: {_inline(nested)}, {text[first.index :]}"
    if depth == 0:
        gap = "" if text.endswith("\n\n") or not text else "\n"
        return text + gap + _lines(path, value, 0)
    line = text.rfind("\n", 0, first.index) + 1
    return text[:line] + _lines(path, value, first.column) + text[line:]


def _replace(text: str, key: Any, child: Any, value: Any, indent: int, in_flow: bool) -> str:
    start = text.index(":", key.end_mark.index) + 1
    end = max(start, len(text[: _end(child)].rstrip()))
    if in_flow or not isinstance(value, dict | list):
        return f"{text[:start]} {_inline(value)}{text[end:]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    comment = text[end:line_end].strip()
    block = _block(value, indent + 2)
    return f"{text[:start]}{' ' + comment if comment else ''}\n{block.rstrip()}{text[line_end:]}"


def _end(node: Any) -> int:
    """Return where a node's text ends. A block collection's own mark includes the comments after it."""
    if isinstance(node.value, str) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _lines(path: tuple[str, ...], value: Any, indent: int) -> str:
    for name in reversed(path[1:]):
        value = {name: value}
    return _block({path[0]: value}, indent)


def _block(value: Any, indent: int) -> str:
    pad = " " * indent
    if isinstance(value, list):
        return "".join(f"{pad}- {_inline(v)}\n" for v in value)
    lines = []
    for name, v in value.items():
        key = name if _is_plain(name) else json.dumps(name, ensure_ascii=False)
        nested = isinstance(v, dict | list) and v
        lines.append(f"{pad}{key}:\n{_block(v, indent + 2)}" if nested else f"{pad}{key}: {_inline(v)}\n")
    return "".join(lines)


def _inline(value: Any) -> str:
    """JSON is valid YAML."""
    return json.dumps(value, ensure_ascii=False)


def _is_plain(name: str) -> bool:
    import yaml

    try:
        return name.replace("_", "").replace(" ", "").isalnum() and yaml.safe_load(name) == name
    except yaml.YAMLError:
        return False
