"""The exception classes of Headrace: ``.code`` is the stable name of the error in Kafka's style, ``.retriable`` a bool.

Servers raise the same exceptions as clients, so the classes are defined in ``headrace_core.errors``; this module is
their public name.
"""

from headrace_core.errors import *  # noqa: F403
from headrace_core.errors import HeadraceError as HeadraceError
