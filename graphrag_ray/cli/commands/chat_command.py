"""`graphrag-ray chat`: a conversation with an index."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from graphrag_ray.base.errors import FAILED_ITEMS, GraphRagError, SnapshotRemoved, UsageError
from graphrag_ray.base.wording import plural, safe
from graphrag_ray.cli import console
from graphrag_ray.cli.command_line import Command, root_option
from graphrag_ray.cli.options import (
    Given,
    asking_options,
    cache_option,
    raw_option,
    settings_options,
    spare_pandas,
    way_options,
)
from graphrag_ray.cli.writing import print_answer, print_sources, write_stream
from graphrag_ray.query.methods import methods
from graphrag_ray.query.methods.methods import check_modes

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.chat import Chat
    from graphrag_ray.query.methods.answer import Answer

PROMPT = "> "
NEWEST = "newest"


@click.command(cls=Command)
@root_option
@settings_options
@asking_options
@way_options
@raw_option
@cache_option
@click.option("--snapshot", type=int, metavar="N", help="An older snapshot instead of the newest.")
def chat(
    given: Given,
    method: str,
    level: str | None,
    where: tuple[str, ...],
    raw: bool,
    cache: str | None,
    snapshot: int | None,
) -> None:
    """Ask the index one question after the other. A question may lean on those before it; /help lists what
    else can be said. From a pipe, every line is a question, and the exit code is 3 where one failed.

    \b
    Examples:
      graphrag-ray chat --root ./my-index
      graphrag-ray chat --root ./my-index --method global --level C1 < questions.txt
    """
    spare_pandas()
    from graphrag_ray.query import traces
    from graphrag_ray.query.chat import Chat

    check_modes(method, given.short)

    def reopen(number: int | None) -> Index:
        return given.index(number, cache)

    with traces.exported(), Chat(reopen(snapshot), method, level, where) as chatting:
        asked = Conversation(chatting, reopen, typed=sys.stdin.isatty(), raw=raw)
        asked.run()
    if asked.failed and not asked.typed:
        sys.exit(FAILED_ITEMS)


@dataclass
class Conversation:
    """reopen   a snapshot of the index by its number; None: the newest
    typed    somebody sits at a terminal; else questions are repeated before their answers
    raw      Markdown is not rendered
    failed   questions without an answer, or with a part of one
    """

    chat: Chat
    reopen: Callable[[int | None], Index]
    typed: bool
    raw: bool = False
    failed: int = 0
    _last: Answer | None = None
    _told: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Until /quit, or the end of what is typed."""
        from graphrag_ray.engine.drive import note_bug

        click.echo(self._introduction())
        for line in self._lines():
            text = line.strip()
            if not self.typed and text:
                click.echo(f"\n{PROMPT}{text}")
            if text in ("exit", "quit") or text.partition(" ")[0] == "/quit":
                return
            try:
                self._obey(text) if text.startswith("/") else self._answer(text)
            except KeyboardInterrupt:
                click.echo("[stopped]")
            except GraphRagError as e:
                self.failed += 1
                hint = f" (/snapshot {NEWEST})" if isinstance(e, SnapshotRemoved) else ""
                click.echo(f"graphrag-ray: {e}{hint}", err=True)
            except Exception as e:  # noqa: BLE001 - one question, or one command, and not the conversation
                self.failed += 1
                click.echo(f"graphrag-ray: {safe(note_bug(e))}", err=True)

    def _introduction(self) -> str:
        index = self.chat.index
        held = plural(index.manifest.counts.get("documents", 0), "document")
        return f"{index.store.url}, snapshot {index.manifest.number}, {held}. {self._way()}. /help: more."

    def _way(self) -> str:
        chat = self.chat
        level = f", level {chat.level}" if chat.level is not None else ""
        where = f", where {' and '.join(chat.where)}" if chat.where else ""
        return f"Method {chat.method}{level}{where}"

    def _lines(self) -> Iterator[str]:
        if not self.typed:
            yield from sys.stdin
            return
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401 - it lets `input` edit a line, and keep those before it

        while True:
            try:
                yield input(PROMPT)
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo()

    def _answer(self, question: str) -> None:
        if not question:
            return
        self._last = None
        answer = write_stream(self.chat.stream(question), self.raw)
        print_answer(answer, self.chat.index, None, written=True, told=self._told)
        self._told.update(answer.notes)
        self._last = answer
        self.failed += bool(answer.failed_parts)

    def _obey(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument, chat = argument.strip(), self.chat
        match name:
            case "/method":
                if argument:
                    methods.check(argument, None, ())
                    chat.method = argument
                click.echo(f"{self._way()}. Methods: {', '.join(methods.METHODS)}")
            case "/level":
                chat.level = (None if argument == "auto" else argument) if argument else chat.level
                click.echo(self._way())
            case "/where":
                chat.where = (*chat.where, argument) if argument else ()
                click.echo(self._way())
            case "/sources":
                if self._last is None:
                    raise UsageError("there is no answer yet whose sources could be shown")
                print_sources(console.console_of(), chat.index.sources(self._last.references, self._last))
            case "/snapshot":
                if argument not in ("", NEWEST) and not argument.isdecimal():
                    raise UsageError(f"/snapshot takes a number, or {NEWEST}")
                if argument:
                    chat.open(self.reopen(None if argument == NEWEST else int(argument)))
                click.echo(self._introduction())
            case "/new":
                chat.turns.clear()
                click.echo("What was said before is forgotten.")
            case "/help":
                click.echo("\n".join(f"  {form:<22} {told}" for form, told in COMMANDS.items()))
                click.echo("Anything else is a question. Ctrl-C ends an answer, Ctrl-D the conversation.")
            case _:
                known = ", ".join(form.partition(" ")[0] for form in COMMANDS)
                raise UsageError(f"there is no command {name}; there are {known}")


COMMANDS = {
    "/method NAME": "how answers are found from now on",
    "/level C0..Cn": "which communities; auto: the method's own choice",
    "/where CONDITION": "a further condition on documents; alone: none",
    "/sources": "what lies under the last answer",
    f"/snapshot N|{NEWEST}": "ask another snapshot of the index",
    "/new": "forget what was said: the next question stands alone",
    "/help": "this",
    "/quit": "end the conversation",
}
