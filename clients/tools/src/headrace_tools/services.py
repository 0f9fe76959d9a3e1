"""The services that the tools start and format, by name: no module of a client imports a service."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: The package of each role's program.
PACKAGES = {
    "controller": "headrace_controller",
    "broker": "headrace_broker",
    "coordinator": "headrace_coordinator",
    "registry": "headrace_registry",
    "console": "headrace_console",
}


def load(role: str, module: str) -> Any:
    """Import a module of the role's package. Raises ModuleNotFoundError if the service is not installed."""
    return import_module(f"{PACKAGES[role]}.{module}")
