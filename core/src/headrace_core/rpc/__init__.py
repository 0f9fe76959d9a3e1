"""gRPC plumbing for every service and client. Import this package before ``grpc`` (see environment.py).

The server's code is in ``headrace_core.rpc.server``, which is imported separately because clients do not need it.
"""

# Import environment before grpc: it sets variables that grpc reads at its import.
from . import environment as environment
from .channel import PLAINTEXT, ChannelPool, ChannelPurpose, Channels, LiveChannel, open_channel
from .status import error_from_rpc, raise_proto_error, status_of

__all__ = [
    "PLAINTEXT",
    "ChannelPool",
    "ChannelPurpose",
    "Channels",
    "LiveChannel",
    "error_from_rpc",
    "open_channel",
    "raise_proto_error",
    "status_of",
]
