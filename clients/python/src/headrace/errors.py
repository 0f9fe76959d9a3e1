"""Errors of Headrace: ``.code`` is the stable Kafka-style name, ``.retriable`` a bool.

Servers use the same classes, so they are defined in ``headrace_core.errors``; this is their public module.
"""

from headrace_core.errors import *  # noqa: F403
from headrace_core.errors import HeadraceError as HeadraceError
