"""Mutation testing: how many random mutations of a pure package the unit tests detect.

    python benchmarks/mutation.py graph             # 150 mutants of the package, chosen by a fixed seed
    python benchmarks/mutation.py graph --sample 0  # all of them: up to an hour or two

mutmut copies the package and its tests to mutants/, which takes some minutes the first time. It changes one
expression of a function at a time and runs the tests that reach the function. Constants of a module are not
mutated.

Prints a diff for each surviving mutant, then how many were caught. A survivor is either behaviour that no
test checks, or a change without effect, so look at it before you write a test. Delete mutants/ after larger
changes.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys

MUTMUT = [sys.executable, "-m", "mutmut"]
CAUGHT = ("killed", "timeout", "segfault")


def verdicts(room: str) -> dict[str, str]:
    """Map from each mutant of the folder to its status in mutmut; empty before its first run."""
    listed = subprocess.run(
        [*MUTMUT, "results", "--all", "true"], capture_output=True, text=True, check=False
    )
    lines = (line.strip().partition(": ") for line in listed.stdout.splitlines())
    return {name: verdict for name, _, verdict in lines if name.startswith(f"graphrag_ray.{room}.")}


def run(names: list[str]) -> None:
    command = [*MUTMUT, "run", *names, "--max-children", "1"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("room", help="a folder of graphrag_ray")
    parser.add_argument("--sample", type=int, default=150, help="number of mutants to test; 0: all")
    parser.add_argument("--seed", type=int, default=14)
    options = parser.parse_args()
    if not verdicts(options.room):
        run(["graphrag_ray.no_such_mutant"])  # Creates the mutants.
    names = sorted(verdicts(options.room))
    if 0 < options.sample < len(names):
        names = sorted(random.Random(options.seed).sample(names, options.sample))
    run(names)
    statuses = verdicts(options.room)
    survivors = [name for name in names if statuses[name] not in CAUGHT]
    for name in survivors:
        subprocess.run([*MUTMUT, "show", name], check=False)
    caught = len(names) - len(survivors)
    print(f"{options.room}: {caught} of {len(names)} mutants caught ({caught / max(len(names), 1):.0%})")


if __name__ == "__main__":
    main()
