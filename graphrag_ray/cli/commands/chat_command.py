"""`graphrag-ray chat`: a conversation with an index."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import FAILED_ITEMS
from graphrag_ray.cli.options import (
    asking_options,
    cache_option,
    naming_root,
    open_root,
    raw_option,
    settings_from,
    settings_options,
    way_options,
)
from graphrag_ray.cli.program import Command, root_option
from graphrag_ray.cli.quick import spare_pandas
from graphrag_ray.query.methods.methods import check_modes

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index


@click.command(cls=Command)
@root_option
@settings_options
@asking_options
@way_options
@raw_option
@cache_option
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
def chat(
    root: str,
    config: str | None,
    overrides: tuple[str, ...],
    method: str,
    level: str | None,
    where: tuple[str, ...],
    raw: bool,
    cache: str | None,
    snapshot: int | None,
    **short: Any,
) -> None:
    """Ask the index one question after the other. A question may lean on those before it; /help lists what
    else can be said. From a pipe, every line is a question, and the exit code is 3 where one failed.

    \b
    Examples:
      graphrag-ray chat --root ./my-index
      graphrag-ray chat --root ./my-index --method global --level C1 < questions.txt
    """
    spare_pandas()
    from graphrag_ray import open_index
    from graphrag_ray.cli.conversation import Conversation
    from graphrag_ray.query import traces
    from graphrag_ray.query.chat import Chat
    from graphrag_ray.store.snapshots import open_latest

    check_modes(method, short)
    store = open_root(root, config, overrides)

    def reopen(number: int | None) -> Index:
        with naming_root(root):
            manifest = open_latest(store, number)
        settings = settings_from(config, overrides, short, manifest.settings, store.url)
        return open_index(root, snapshot=manifest.number, settings=settings, cache=cache)

    with traces.exported(), Chat(reopen(snapshot), method, level, where) as conversation:
        asked = Conversation(conversation, reopen, typed=sys.stdin.isatty(), raw=raw)
        asked.run()
    if asked.failed and not asked.typed:
        sys.exit(FAILED_ITEMS)
