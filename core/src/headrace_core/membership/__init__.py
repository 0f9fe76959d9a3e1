"""Cluster membership: sessions with the controllers, the metadata that they publish, descriptions of nodes.

Every service uses it, and the SDK does not. It builds on ``headrace_core.rpc``, which does not know it.
"""

from .. import rpc as rpc  # before grpc: it sets environment variables that grpc reads at its import
