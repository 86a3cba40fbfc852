"""The command line: one file per command in `commands/`, imported when it is asked for."""

from __future__ import annotations

import click

from graphrag_ray import logs
from graphrag_ray.terminal.options import Commands
from graphrag_ray.version import __version__

COMMANDS = (
    "index", "query", "chat", "levels", "inspect", "export", "status", "failures", "gc", "estimate", "init",
    "serve",
)  # fmt: skip
"""Each is the function of that name in the module of that name."""


@click.group(
    cls=Commands,
    package="graphrag_ray.commands",
    names=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes: 0 done; 2 wrong usage or settings; 3 done, but with failed items (see `failures`);
            4 stopped by a budget; 130 by Ctrl-C, 143 by SIGTERM; 1 anything else.""",
)
@click.version_option(__version__)
def main() -> None:
    """A knowledge graph of your documents, and answers about all of them.

    \b
    Examples:
      graphrag-ray index ./documents --root ./my-index
      graphrag-ray query "What are the main themes?" --root ./my-index
    """
    logs.configure()


if __name__ == "__main__":
    main()
