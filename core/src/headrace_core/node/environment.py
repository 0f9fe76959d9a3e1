"""A node's configuration from its environment, for containers: ``HEADRACE_LOG_FLUSH=os`` is log.flush.

A variable is ``HEADRACE_`` and the key in capitals, with ``_`` for ``.``. Read only with ``--environment``, so that the
variables of a user's shell do not affect the nodes of ``headrace up``. An empty value counts as unset (compose files
pass unset variables as ""). They override the file, and ``-o`` overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .properties import Properties

PREFIX = "HEADRACE_"
#: Variables of other parts that a container may have: clients' servers and profiles, the cluster directory of `headrace
#: up`, the pure-Python codec, stack traces.
NOT_KEYS = frozenset(
    {
        "HEADRACE_BOOTSTRAP_SERVERS",
        "HEADRACE_DATA",
        "HEADRACE_PROFILE",
        "HEADRACE_PROFILES",
        "HEADRACE_PURE_PYTHON",
        "HEADRACE_DEBUG",
    }
)


def environment_properties(environment: Mapping[str, str]) -> Properties:
    """The keys that ``environment`` sets, unchecked as in a file."""
    values = Properties()
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) and name not in NOT_KEYS and value.strip():
            key = name.removeprefix(PREFIX).lower().replace("_", ".")
            values[key] = value.strip()
            values.set_in[key] = f"{name} in the environment"
    return values
