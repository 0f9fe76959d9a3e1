"""CRC-32C, from the compiled module of the package crc32c.

``import crc32c`` also imports importlib.metadata and argparse, a tenth of the CPU in which a client starts, so this
module loads only the compiled module, under its own name.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import Any

_NAME = "crc32c._crc32c"


def _compiled() -> Any:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.find_spec("crc32c")
    spec = None if package is None else PathFinder.find_spec(_NAME, package.submodule_search_locations)
    if spec is None or spec.loader is None:  # another layout, as in a frozen program
        return importlib.import_module("crc32c")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_NAME] = module
    return module


crc32c = _compiled().crc32c
