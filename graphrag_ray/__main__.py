"""`python -m graphrag_ray` is `graphrag-ray`."""

from graphrag_ray.cli.command_line import main

main(prog_name="graphrag-ray")
