"""Handlers and projectors as processes. The owner starts a process again when it dies, as a supervisor does.

    python -m headrace_pipelines.orders.processes handler NAME
    python -m headrace_pipelines.orders.processes projector DATABASE
    python -m headrace_pipelines.orders.processes rebuild DATABASE

A process ends after its batch when its standard input ends, so no process outlives a killed owner.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace_core.errors import HeadraceError

from ..access import Access
from ..members import Member, owner_access, owner_ended
from .database import Database
from .handling import Handler
from .projecting import Projector

MODULE = "headrace_pipelines.orders.processes"
#: The first word of a progress line of the rebuild. After this word, the line has the seconds since 1970 and the sum of
#: the positions.
REBUILT = "rebuilt"


def main(arguments: Sequence[str]) -> int:
    role, name = arguments
    access = owner_access()
    is_stopped = owner_ended().is_set
    try:
        if role == "handler":
            Handler(access, name).run(is_stopped)
            return 0
        with Database(name) as database:
            projector = Projector(access, database)
            if role == "rebuild":
                projector.rebuild(is_stopped, lambda position: print(f"{REBUILT} {time.time()} {position}", flush=True))
            else:
                projector.follow(is_stopped)
    except HeadraceError as error:
        print(f"{role}: {error.code}: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


def member(role: str, access: Access, name: str, log: Path) -> Member:
    """The process of a role. ``name``: the handler's name, or the URL of the database."""
    return Member(role, [sys.executable, "-m", MODULE, role, name], log, access)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
