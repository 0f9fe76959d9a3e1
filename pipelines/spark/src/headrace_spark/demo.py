"""``python -m headrace_spark.demo`` is ``python -m headrace_pipelines.demo``, until 0.2."""

import sys

from headrace_pipelines.demo.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
