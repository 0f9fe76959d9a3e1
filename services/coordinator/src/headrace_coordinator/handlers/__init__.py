"""The coordinator's gRPC services: messages in, the runtime's requests out, and back."""
