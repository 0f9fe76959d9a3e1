"""``python -m headrace.cli`` is ``headrace``."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
