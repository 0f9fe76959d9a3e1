"""The controller's gRPC services: protobuf in, frozen requests to the driver, protobuf out. No rules in here."""
