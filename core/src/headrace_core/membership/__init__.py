"""Who is where in a cluster: sessions with the controllers, the metadata they publish, what a node says of itself.

Every service uses it, and the SDK does not. It is built upon ``headrace_core.rpc``, which knows nothing of it.
"""

from .. import rpc as rpc  # before grpc: it sets what grpc reads when it is imported
