"""`graphrag-ray evaluate`: which way of answering is better, with figures."""

from __future__ import annotations

import click

from graphrag_ray.cli.program import Commands

EVALUATE_COMMANDS = {
    "Head to head": {
        "questions": "Write questions about the corpus as a whole.",
        "estimate": "What a comparison will cost, before anything is spent.",
        "compare": "Have a judge compare the answers of several conditions.",
        "claims": "Count the factual claims of their answers.",
    },
    "Known answers, communities": {
        "qa": "Score answers and retrieval where the right ones are known.",
        "communities": "Measure each level of communities.",
    },
}


@click.group(
    cls=Commands,
    package="graphrag_ray.cli.commands",
    prefix="evaluate_",
    listed=EVALUATE_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def evaluate() -> None:
    """Which way of answering is better on your own corpus, with figures that one can defend. All that models
    reply is kept in the folder --out: the same command goes on where it was stopped, and another condition or
    criterion pays only for what is new.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation --report page.html
    """
