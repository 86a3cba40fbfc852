"""Answer many questions on a Ray cluster: `graphrag-ray query --batch` as a job.

    ray job submit --working-dir . -- python jobs/query.py --root s3://bucket/index \
        --batch s3://bucket/questions.csv --out s3://bucket/answers.parquet

Takes the options of `graphrag-ray query` and has its exit codes. `ray job submit` turns each but 0 into 1; how
the batch ended stands in the folder of the replies, here s3://bucket/answers.parquet.work/outcome.json:

    outcome, exit_code, exit_meaning, message   "answered", or what stopped or refused it, and why; "running" and
                                                null while it works, and for good where it was killed
    snapshot, questions, failed, usage          what was asked, how many have no answer or not all of it, what was
                                                paid by stage; null where it came to none
    started_at, ended_at

The questions are read where the job runs; the folder of --out must be reached by all nodes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphrag_ray.cli import main

if __name__ == "__main__":
    main(["query", "--ray", *sys.argv[1:]])
