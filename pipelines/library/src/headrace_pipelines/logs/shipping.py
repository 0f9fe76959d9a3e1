"""The shipper of a run does the same as ``headrace ship``, in a process that ends when its owner ends.

python -m headrace_pipelines.logs.shipping NAME PATTERN
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from headrace_core.errors import HeadraceError
from headrace_tools.ship.shipper import Settings, Shipper, warn_on_stderr

from ..members import owner_access, owner_ended
from .schema import LINES

#: The line that the process prints when it has opened the existing files.
FOLLOWS = "follows"


def main(arguments: Sequence[str]) -> int:
    name, pattern = arguments
    access = owner_access()
    settings = Settings(
        config=access.shared(), producer=access.producer(), topic=LINES, paths=[pattern], name=name,
        host=socket.gethostname(),
    )  # fmt: skip
    warn_on_stderr()
    try:
        Shipper(settings, owner_ended(), lambda _: None, on_open=lambda: print(FOLLOWS, flush=True)).run()
    except HeadraceError as error:
        print(f"shipper: {error.code}: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
