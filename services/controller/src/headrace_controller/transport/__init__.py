"""What carries raft's messages between controllers: gRPC streams on the internal listener."""
