"""The coordinator's gRPC services: they convert protobuf requests for the runtime, and the runtime's replies to
protobuf."""
