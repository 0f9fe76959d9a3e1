"""The shipper of a run: what ``headrace ship`` does, in a process that ends when its owner does.

python -m headrace_pipelines.logs.shipping HOST:PORT NAME PATTERN
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from headrace_core.errors import HeadraceError
from headrace_tools.ship.shipper import Settings, Shipper

from ..members import owner_ended
from .schema import LINES


def main(arguments: Sequence[str]) -> int:
    servers, name, pattern = arguments
    keys = {"bootstrap.servers": servers}
    settings = Settings(config=keys, producer=keys, topic=LINES, paths=[pattern], name=name, host=socket.gethostname())
    try:
        Shipper(settings, owner_ended(), lambda _: None).run()
    except HeadraceError as error:
        print(f"shipper: {error.code}: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
