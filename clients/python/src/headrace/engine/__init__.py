"""The common base of all clients: the process's I/O thread, connections, metadata."""

import headrace_core.rpc as _rpc  # noqa: F401  (before grpc, because rpc sets options that grpc reads at import)
