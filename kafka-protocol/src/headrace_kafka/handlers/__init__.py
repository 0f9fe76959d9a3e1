"""Handlers for the requests of Kafka's clients. Each handler translates a request to calls of Headrace's gRPC services,
and the responses back."""
