"""What `make demo` asks of the demo corpus gets an answer."""

import re
from pathlib import Path

from world import Silent

from graphrag_ray.ask import open_index
from graphrag_ray.engine.gateways import Models
from graphrag_ray.engine.local import LocalExecutor
from graphrag_ray.index import index
from graphrag_ray.settings import Settings
from graphrag_ray.store.files import Store

TOP = Path(__file__).parents[2]


def test_the_question_of_make_demo_is_answered_with_three_references(tmp_path: Path):
    question = re.search(r'query "(.+?)"', (TOP / "Makefile").read_text()).group(1)
    settings = Settings()
    executor = LocalExecutor(Store(str(tmp_path)), Models.of(settings))
    index(str(TOP / "demo" / "corpus"), executor, settings, Silent())
    answer = open_index(str(tmp_path)).ask(question)
    assert answer.found and len(answer.references) >= 3
