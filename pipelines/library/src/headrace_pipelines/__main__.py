"""Makes ``python -m headrace_pipelines`` the same as the command ``headrace-pipelines``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
