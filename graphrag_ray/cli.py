"""The command line: one file per command in `commands/`."""

from __future__ import annotations

import logging

import click

from graphrag_ray.commands.estimate import estimate
from graphrag_ray.commands.export import export
from graphrag_ray.commands.failures import failures
from graphrag_ray.commands.gc import gc
from graphrag_ray.commands.index import index
from graphrag_ray.commands.init import init
from graphrag_ray.commands.inspect import inspect
from graphrag_ray.commands.query import query
from graphrag_ray.commands.status import status
from graphrag_ray.terminal.options import Commands
from graphrag_ray.version import __version__


@click.group(
    cls=Commands,
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
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


for command in (index, query, inspect, export, status, failures, gc, estimate, init):
    main.add_command(command)


if __name__ == "__main__":
    main()
