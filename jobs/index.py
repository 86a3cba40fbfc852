"""Build or update an index on a Ray cluster: `graphrag-ray index` as a job.

    ray job submit --no-wait --address http://head:8265 --working-dir . -- \
        python jobs/index.py --config s3://bucket/settings.yaml

    ray job submit --no-wait --working-dir . -- python jobs/index.py s3://bucket/documents --root s3://bucket/index

    ray job submit --no-wait --working-dir . -- \
        python jobs/index.py --input articles:dataset --root s3://bucket/index

Here articles.py, in the working directory, has a function `dataset` that returns a `ray.data.Dataset`.

Takes the options of `graphrag-ray index` and has its exit codes. `ray job submit` exits with 1 for all but 0;
`status` reads the progress, the outcome and the actual exit code from the index:

    graphrag-ray status --root s3://bucket/index --watch --next

Each node finds the keys of models and storage in its own environment. The settings are read where the job
runs, reached as its environment says.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphrag_ray.cli.command_line import main

if __name__ == "__main__":
    main(["index", *sys.argv[1:]])
