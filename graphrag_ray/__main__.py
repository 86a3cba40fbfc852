"""`python -m graphrag_ray` is `graphrag-ray`."""

from graphrag_ray.cli import main

main(prog_name="graphrag-ray")
