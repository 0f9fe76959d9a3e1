"""One file per gRPC service. Only these modules (and the composition root) know protobuf."""
