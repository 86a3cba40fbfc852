"""`graphrag-ray chat`: ask questions in a conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, GraphRagError, SnapshotRemoved, UsageError
from graphrag_ray.base.wording import escape_control, plural
from graphrag_ray.cli import console, options
from graphrag_ray.cli.answer_output import print_answer, print_sources, write_stream
from graphrag_ray.cli.command_line import Command
from graphrag_ray.cli.options import IndexOptions
from graphrag_ray.query.methods import methods

if TYPE_CHECKING:
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.chat import Chat
    from graphrag_ray.query.methods.answer import Answer

PROMPT = "> "
NEWEST = "newest"


@click.command(cls=Command)
@options.settings
@options.answer
@options.search
@options.raw
@options.cache
@options.snapshot
def chat(opts: IndexOptions, raw: bool, cache: str | None, snapshot: int | None, **search: Any) -> None:
    """Ask questions in a conversation. A question may refer to earlier ones. Type /help to list the commands.

    If the input is a pipe or file, every line is a question, and the exit code is 3 if one of them failed.

    \b
    Examples:
      graphrag-ray chat --root ./my-index
      graphrag-ray chat --root ./my-index --method global --level C1 < questions.txt
    """
    options.avoid_pandas_import()
    from graphrag_ray.query import traces
    from graphrag_ray.query.chat import Chat

    methods.check_options(search["method"], opts.short)

    def reopen(number: int | None) -> Index:
        return opts.index(number, cache)

    with traces.export_traces(), Chat(reopen(snapshot), **search) as conversation:
        session = Conversation(conversation, reopen, typed=sys.stdin.isatty(), raw=raw)
        session.run()
    if session.failed and not session.typed:
        sys.exit(EXIT_FAILED_ITEMS)


@dataclass
class Conversation:
    """A conversation on standard input and output."""

    chat: Chat
    reopen: Callable[[int | None], Index]  # Opens a snapshot by number; None opens the newest.
    typed: bool  # The input is a terminal. Otherwise, each question is printed before its answer.
    raw: bool = False
    failed: int = 0  # Number of questions with a missing or partial answer.
    _last: Answer | None = None
    _notes: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Answer questions until /quit or the end of the input."""
        from graphrag_ray.engine.dialogue_runner import record_bug

        click.echo(self._introduction())
        for line in self._lines():
            text = line.strip()
            if not self.typed and text:
                click.echo(f"\n{PROMPT}{text}")
            if text in ("exit", "quit") or text.partition(" ")[0] == "/quit":
                return
            try:
                self._execute(text) if text.startswith("/") else self._answer(text)
            except KeyboardInterrupt:
                click.echo("[stopped]")
            except GraphRagError as e:
                self.failed += 1
                hint = f" (/snapshot {NEWEST})" if isinstance(e, SnapshotRemoved) else ""
                click.echo(f"graphrag-ray: {e}{hint}", err=True)
            except Exception as e:  # noqa: BLE001 - A failed question or command must not end the conversation.
                self.failed += 1
                click.echo(f"graphrag-ray: {escape_control(record_bug(e))}", err=True)

    def _introduction(self) -> str:
        index = self.chat.index
        n_documents = plural(index.manifest.counts.get("documents", 0), "document")
        snapshot = f"{index.store.url}, snapshot {index.manifest.number}, {n_documents}"
        return f"{snapshot}. {self._method()}. Type /help for help."

    def _method(self) -> str:
        chat = self.chat
        level = f", level {chat.level}" if chat.level is not None else ""
        where = f", where {' and '.join(chat.where)}" if chat.where else ""
        return f"Method {chat.method}{level}{where}"

    def _lines(self) -> Iterator[str]:
        if not self.typed:
            yield from sys.stdin
            return
        with suppress(ImportError):  # readline is not available on every system.
            import readline  # noqa: F401 - Adds line editing and history to `input`.

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
        print_answer(answer, self.chat.index, None, written=True, known_notes=self._notes)
        self._notes.update(answer.notes)
        self._last = answer
        self.failed += bool(answer.failed_parts)

    def _execute(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument, chat = argument.strip(), self.chat
        match name:
            case "/method":
                if argument:
                    methods.check_method(argument, None, ())
                    chat.method = argument
                click.echo(f"{self._method()}. Methods: {', '.join(methods.METHODS)}")
            case "/level":
                chat.level = (None if argument == "auto" else argument) if argument else chat.level
                click.echo(self._method())
            case "/where":
                chat.where = (*chat.where, argument) if argument else ()
                click.echo(self._method())
            case "/sources":
                if self._last is None:
                    raise UsageError("There is no answer yet. Ask a question first.")
                print_sources(console.make_console(), chat.index.sources(self._last.references, self._last))
            case "/snapshot":
                if argument not in ("", NEWEST) and not argument.isdecimal():
                    raise UsageError(f"/snapshot needs a number or {NEWEST}")
                if argument:
                    chat.open(self.reopen(None if argument == NEWEST else int(argument)))
                click.echo(self._introduction())
            case "/new":
                chat.turns.clear()
                click.echo("Forgot the previous questions.")
            case "/help":
                click.echo("\n".join(f"  {form:<22} {summary}" for form, summary in COMMANDS.items()))
                click.echo(
                    "Any other line is a question. Ctrl-C stops an answer, Ctrl-D ends the conversation."
                )
            case _:
                known = ", ".join(form.partition(" ")[0] for form in COMMANDS)
                raise UsageError(f"Unknown command {name}. Choose from: {known}")


COMMANDS = {
    "/method NAME": "change the search method",
    "/level C0..Cn": "change the community level; auto: let the method choose",
    "/where CONDITION": "add a condition on documents; without CONDITION, remove all conditions",
    "/sources": "show the sources of the last answer",
    f"/snapshot N|{NEWEST}": "switch to another snapshot of the index",
    "/new": "forget the previous questions",
    "/help": "list the commands",
    "/quit": "end the conversation",
}
