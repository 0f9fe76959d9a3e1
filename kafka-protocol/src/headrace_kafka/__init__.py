"""Kafka's protocol, as a library: the wire format, and the requests of Kafka's clients."""
