"""Makes ``python -m headrace_tools`` the same as the command ``headrace``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
