"""Answer many questions on a Ray cluster: `graphrag-ray query --batch` as a job.

    ray job submit --working-dir . -- python jobs/query.py --root s3://bucket/index \
        --batch s3://bucket/questions.csv --out s3://bucket/answers.parquet

Takes the options of `graphrag-ray query` and has its exit codes. `ray job submit` turns each but 0 into 1;
the outcome of the batch, or why it was refused, is stored with the answers, here in
s3://bucket/answers.parquet.work/outcome.json:

    outcome        "answered", or in a word what stopped or refused it; "running" while it works, and after it
                   was killed
    exit_code      and exit_meaning, of the command; null while it works
    message        explains an outcome other than "answered"
    snapshot       that was asked; questions: how many; failed: how many have no answer, or a part of it only;
                   usage: what was paid, by stage. null where it did not come to that
    started_at     and ended_at

The questions are read where the job runs; the folder of --out must be reached by all nodes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphrag_ray.cli.command_line import main

if __name__ == "__main__":
    main(["query", "--ray", *sys.argv[1:]])
