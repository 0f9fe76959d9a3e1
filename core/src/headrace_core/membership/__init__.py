"""Cluster membership: sessions with the controllers, the metadata that they publish, descriptions of nodes.

Every service uses the package ``membership``; the SDK does not. The package ``membership`` builds on
``headrace_core.rpc``, and not the reverse.
"""

from .. import rpc as rpc  # import rpc before grpc: rpc sets environment variables that grpc reads at its import
