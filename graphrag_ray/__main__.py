"""Run `graphrag-ray` with `python -m graphrag_ray`."""

from graphrag_ray.cli.command_line import main

main(prog_name="graphrag-ray")
