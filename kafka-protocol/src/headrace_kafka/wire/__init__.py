"""Kafka's wire protocol: decodes bytes to messages, and encodes messages to bytes. No module of this package does
I/O."""
