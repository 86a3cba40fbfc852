"""Pure folders can be imported without Ray, network libraries and object stores."""

from __future__ import annotations

import pytest
from world import python

BLOCKED = ("ray", "openai", "fsspec", "s3fs", "aiohttp")

SCRIPT = """
import importlib, importlib.abc, pkgutil, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
room = importlib.import_module("graphrag_ray.{room}")
names = [m.name for m in pkgutil.walk_packages(room.__path__, room.__name__ + ".")]
for name in names:
    importlib.import_module(name)
{more}
print(len(names), [m for m in {blocked!r} if m in sys.modules])
"""

OFFLINE = """
from graphrag_ray.base.messages import CallParameters, EmbeddingRequest
from graphrag_ray.offline import embed_many
assert len(embed_many(["a text"])[0]) == 1024
"""


@pytest.mark.parametrize("room", ["corpus", "graph", "query.methods", "offline", "indexing.forecast"])
def test_pure_folders_import_without_ray_network_or_object_store(room: str):
    script = SCRIPT.format(blocked=BLOCKED, room=room, more=OFFLINE if room == "offline" else "")
    done = python(script)
    assert done.returncode == 0, done.stderr
    n, _, imported = done.stdout.strip().partition(" ")
    assert int(n) >= 3 and imported == "[]"


def test_the_offline_engine_does_not_change_logging():
    script = (
        "import logging; before = logging.getLogger().level\n"
        "from graphrag_ray.offline import embed_many; embed_many(['a'])\n"
        "root = logging.getLogger(); print(root.level == before, root.handlers)"
    )
    done = python(script)
    assert done.stdout.strip() == "True []", done.stderr
