"""A node's configuration from its environment, for containers: ``HEADRACE_LOG_FLUSH=os`` is log.flush.

A variable's name is ``HEADRACE_`` and the key in capitals, with ``_`` for ``.``. Variables are read only with
``--environment``, so that the variables of a user's shell do not affect the nodes of ``headrace up``. An empty variable
is treated as unset, because compose files pass unset variables as "". Variables override the properties file, and
``-o`` overrides variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from .properties import Properties

PREFIX = "HEADRACE_"
#: Variables with the prefix HEADRACE_ that set no configuration key of a node. These HEADRACE_ variables configure
#: clients, name the cluster directory of `headrace up`, switch to the pure-Python codec, and show stack traces.
NOT_KEYS = frozenset(
    {
        "HEADRACE_BOOTSTRAP_SERVERS",
        "HEADRACE_CONNECT_URL",
        "HEADRACE_DATA",
        "HEADRACE_PROFILE",
        "HEADRACE_PROFILES",
        "HEADRACE_PURE_PYTHON",
        "HEADRACE_SCHEMA_REGISTRY_URL",
        "HEADRACE_DEBUG",
    }
)


def environment_properties(environment: Mapping[str, str]) -> Properties:
    """Return the keys that ``environment`` sets, with unchecked values, as from a file."""
    values = Properties()
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) and name not in NOT_KEYS and value.strip():
            key = name.removeprefix(PREFIX).lower().replace("_", ".")
            values[key] = value.strip()
            values.set_in[key] = f"{name} in the environment"
    return values
