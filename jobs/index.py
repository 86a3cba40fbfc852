"""Build or update an index on a Ray cluster: `graphrag-ray index` as a job.

    ray job submit --no-wait --address http://head:8265 --working-dir . -- \
        python jobs/index.py --config s3://bucket/settings.yaml

    ray job submit --no-wait --working-dir . -- python jobs/index.py s3://bucket/documents --root s3://bucket/index

    ray job submit --no-wait --working-dir . -- \
        python jobs/index.py --input articles:dataset --root s3://bucket/index

In the last example, articles.py in the working directory has a function `dataset` that returns a
`ray.data.Dataset`.

Takes the options of `graphrag-ray index` and has the same exit codes, but `ray job submit` turns every code
except 0 into 1. `status` reads the progress, the outcome and the actual exit code from the index:

    graphrag-ray status --root s3://bucket/index --watch --next

Each node reads API and storage keys from its own environment. The settings file is read where the job runs,
with the storage access of that environment.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphrag_ray.cli.command_line import main

if __name__ == "__main__":
    main(["index", *sys.argv[1:]])
