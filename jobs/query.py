"""Answer many questions on a Ray cluster: `graphrag-ray query --batch` as a job.

    ray job submit --working-dir . -- python jobs/query.py --root s3://bucket/index \
        --batch s3://bucket/questions.csv --out s3://bucket/answers.parquet

Takes the options of `graphrag-ray query` and has the same exit codes, but `ray job submit` turns every code
except 0 into 1. The outcome of the batch is stored next to the answers, here in
s3://bucket/answers.parquet.work/outcome.json. Values that are not known yet are null.

    outcome        "answered", or a word for the reason why the batch stopped or was refused. "running" while
                   it runs, and after it was killed
    exit_code, exit_meaning
                   exit code of the command, and its meaning
    message        explains an outcome other than "answered"
    snapshot       snapshot that was searched
    questions      number of questions
    failed         number of questions without a complete answer
    usage          calls, tokens and cost by stage
    started_at, ended_at

The questions are read where the job runs. All nodes must have access to the folder of --out.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphrag_ray.cli.command_line import main

if __name__ == "__main__":
    main(["query", "--ray", *sys.argv[1:]])
