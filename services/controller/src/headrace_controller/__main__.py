"""``python -m headrace_controller`` runs a controller; headrace_core.node.arguments describes its arguments."""

from __future__ import annotations

import sys

from headrace_core.node.first_voters import WriteVoters
from headrace_core.node.run import Serve, main


def _load() -> Serve:
    from .app import serve

    return serve


def _load_writer() -> WriteVoters:
    from .formatting import write_voters

    return write_voters


if __name__ == "__main__":
    sys.exit(
        main(sys.argv[1:], program="headrace_controller", role="controller", serve=_load, write_voters=_load_writer)
    )
