"""The exception classes of Headrace: ``.code`` is the stable name of the error in Kafka's style, ``.retriable`` a bool.

Servers raise the same exceptions as clients. The classes are therefore defined in ``headrace_core.errors``, and this
module is their public name.
"""

from headrace_core.errors import *  # noqa: F403
from headrace_core.errors import HeadraceError as HeadraceError
