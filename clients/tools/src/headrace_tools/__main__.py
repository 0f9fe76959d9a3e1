"""``python -m headrace_tools`` is ``headrace``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
