"""Handlers of the broker's gRPC services, one file for each service. Only the handlers and app.py use protobuf
messages."""
