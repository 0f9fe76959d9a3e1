"""gRPC plumbing, the same for every service and client. Import this package before ``grpc`` (see environment.py).

The server side lives in ``headrace_core.rpc.server`` and is imported from there: a client needs none of it.
"""

from . import environment as environment  # first: it sets what grpc reads at import time
from .channel import ChannelPurpose, open_channel
from .status import error_from_rpc, error_to_proto, raise_proto_error, status_of

__all__ = [
    "ChannelPurpose",
    "error_from_rpc",
    "error_to_proto",
    "open_channel",
    "raise_proto_error",
    "status_of",
]
