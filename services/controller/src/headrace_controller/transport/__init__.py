"""The transport of Raft messages between controllers: gRPC streams on the internal listener."""
