"""Ask a finished index many questions and summarise the answers.

    python benchmarks/questions.py --root ./index --questions questions.csv

questions.csv has a column question_text. Five questions unrelated to any corpus are asked as well. Prints the
number of answers and references, CPU time per question, and the questions with fewer than three references.
Prints measurements; asserts nothing.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path

from graphrag_ray import open_index

OFF_TOPIC = (
    "How long should sourdough bread rest before it is baked?",
    "Which team won the football World Cup in 1998?",
    "How do I prune roses in winter?",
    "What is the capital of Mongolia and how cold does it get there?",
    "How many calories does a portion of lasagne have?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--level", default=None)
    args = parser.parse_args()
    with args.questions.open(encoding="utf-8-sig", newline="") as file:
        questions = [row["question_text"] for row in csv.DictReader(file)]
    index = open_index(args.root)
    started = time.process_time()
    answers = [index.ask(q, args.level) for q in questions]
    cpu = (time.process_time() - started) / len(questions)
    answered = [a for a in answers if len(a.references) >= 3]
    texts = {a.text for a in answers if a.found}
    dropped = sum(a.dropped_references for a in answers)
    nothing = sum(not index.ask(q, args.level).found for q in OFF_TOPIC)
    print(f"index                              {args.root}, snapshot {index.manifest.number}")
    print(f"level                              C{answers[0].level}")
    print(f"questions                          {len(questions)}")
    print(f"… with three or more references    {len(answered)} ({len(answered) / len(questions):.3f})")
    print(f"… answered, distinct answers       {sum(a.found for a in answers)}, {len(texts)} texts")
    print(f"invalid references removed         {dropped}")
    print(f"references per answer, median      {statistics.median(len(a.references) for a in answers):.0f}")
    print(f"off-topic: nothing found           {nothing} of {len(OFF_TOPIC)}")
    print(f"CPU s per question                 {cpu:.2f}")
    for question, answer in zip(questions, answers, strict=True):
        if len(answer.references) < 3:
            print(f"  fewer than three references: {question}")


if __name__ == "__main__":
    main()
