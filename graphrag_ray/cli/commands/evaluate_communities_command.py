"""`graphrag-ray evaluate communities`: how good the communities of an index are."""

from __future__ import annotations

import click

from graphrag_ray.cli import console
from graphrag_ray.cli.commands.evaluate_command import opened, print_table
from graphrag_ray.cli.options import Given, json_option, reach_options
from graphrag_ray.cli.program import Command, root_option


@click.command(cls=Command)
@root_option
@reach_options
@json_option
def communities(given: Given, as_json: bool) -> None:
    """For each hierarchy and level: modularity in the graph, Calinski-Harabasz index and mean cosine over
    the embeddings of entities (higher is better for all three), sizes, communities of one member, and the
    share of entities that are in one.

    \b
    Example:
      graphrag-ray evaluate communities --root ./my-index
    """
    from graphrag_ray.evaluate.community_measures import measured_communities

    found = measured_communities(opened(given))
    if as_json:
        console.print_json({"communities": found.to_pylist()})
    elif not len(found):
        click.echo("This index has no communities of entities to measure.")
    else:
        print_table(found)
