"""The errors that Headrace raises: ``.code`` is the stable Kafka-style name, ``.retriable`` a bool.

They are the same classes on both sides of the wire, so they live in ``headrace_core.errors``; this is their public
home.
"""

from headrace_core.errors import *  # noqa: F403
from headrace_core.errors import HeadraceError as HeadraceError
