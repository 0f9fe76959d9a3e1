"""A production node on a disk that can lose power; the tests start it instead of ``python -m headrace_broker``.

    python faulty_node.py broker JOURNAL_DIRECTORY --config FILE [-o key=value]...

Only the file system is replaced (``headrace_core.testing.power_loss``).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from headrace_core.node.run import Serve, main
from headrace_core.rpc import environment
from headrace_core.testing.power_loss import PowerLossFileSystem

ROLES = ("controller", "broker", "coordinator")


def run(role: str, journal: Path, arguments: list[str]) -> int:
    def load() -> Serve:
        environment.tune_malloc()
        environment.tune_interpreter()
        app = importlib.import_module(f"headrace_{role}.app")
        disk = PowerLossFileSystem(journal)
        assert hasattr(app, "RealFileSystem"), f"headrace_{role}.app makes its file system elsewhere by now"
        app.RealFileSystem = lambda: disk
        serve: Serve = app.serve
        return serve

    return main(arguments, program=f"headrace_{role}", role=role, serve=load)


if __name__ == "__main__":
    if sys.argv[1] not in ROLES:
        sys.exit(f"{sys.argv[1]}: a node is a controller, a broker or a coordinator")
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
