"""The common base of all clients: the process's I/O thread, connections, metadata."""

import headrace_core.rpc as _rpc  # noqa: F401  (before grpc: it sets what grpc reads at import time)
