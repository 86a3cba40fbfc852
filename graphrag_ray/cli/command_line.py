"""The command line: one file per command in `cli/commands/`, imported when it is asked for."""

from __future__ import annotations

import os

import click

from graphrag_ray.base import logs
from graphrag_ray.cli.program import Commands
from graphrag_ray.version import __version__

# Before numpy is imported: products are small, and threads that wait for them take more time than they do. An
# index is made by processes beside each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

COMMANDS = {
    "Build": {
        "init": "Write settings and prompts to edit.",
        "estimate": "What indexing will take, before anything is spent.",
        "index": "Build an index of documents, or bring it up to date.",
        "status": "What an index holds, and how its run is going.",
        "failures": "Items without a result, and why; try them again.",
    },
    "Ask": {
        "query": "Answer a question, or a file of questions.",
        "chat": "Ask one question after the other.",
    },
    "Look inside": {
        "levels": "Reports and tokens of each level of communities.",
        "inspect": "Communities, entities, relationships, texts.",
        "export": "Write files for other programs.",
        "evaluate": "Which way of answering is better, with figures.",
    },
    "Operate": {"serve": "Answer questions over HTTP.", "gc": "Remove old snapshots; purge a document."},
}
"""In the order of the work. Each is the function of that name in the module of that name."""


@click.group(
    cls=Commands,
    module="graphrag_ray.cli.commands.{}_command",
    listed=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
