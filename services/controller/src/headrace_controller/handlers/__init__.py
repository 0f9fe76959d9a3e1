"""The controller's gRPC services: they convert protobuf requests into frozen requests to the driver, and its answers
into protobuf. The handlers contain no rules about the cluster."""
