"""The controller's gRPC services: they convert protobuf requests into frozen requests to the driver, and the driver's
answers into protobuf. The handlers contain no rules about the cluster."""
