"""A node's configuration from its environment, as containers are configured: ``HEADRACE_LOG_FLUSH=os`` is log.flush.

The name of a key in capitals, ``_`` for ``.``, behind ``HEADRACE_``. Read only when the node is started with
``--environment``: the variables of somebody's shell change no node that ``headrace up`` starts. An empty value is none
(compose files pass on what is not set as ""). They override the file, and ``-o`` overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .properties import Properties

PREFIX = "HEADRACE_"
#: Variables of other parts, which a container may well have: clients' servers and profiles, where `headrace up` keeps a
#: cluster, the pure-Python codec, stack traces.
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
    """The keys that ``environment`` sets; whether they exist is for who parses them, as with a file's."""
    values = Properties()
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) and name not in NOT_KEYS and value.strip():
            key = name.removeprefix(PREFIX).lower().replace("_", ".")
            values[key] = value.strip()
            values.set_in[key] = f"{name} in the environment"
    return values
