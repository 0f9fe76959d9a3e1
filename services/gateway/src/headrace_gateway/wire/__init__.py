"""Kafka's wire protocol as values: bytes to messages and back. No module of this package does I/O."""
