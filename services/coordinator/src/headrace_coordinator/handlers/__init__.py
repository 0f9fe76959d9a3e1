"""The coordinator's gRPC services: they convert protobuf requests for the runtime, and its replies to protobuf."""
