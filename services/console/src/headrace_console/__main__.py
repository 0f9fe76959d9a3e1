"""python -m headrace_console --config FILE [-o key=value]..."""

from __future__ import annotations

import sys

from headrace_core.node.run import Serve, main


def _load() -> Serve:
    from headrace_core.rpc import environment

    environment.tune_interpreter()
    from .app import serve

    return serve


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], program="python -m headrace_console", role="console", serve=_load))
