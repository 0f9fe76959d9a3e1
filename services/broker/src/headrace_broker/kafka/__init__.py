"""The broker's door for Kafka's clients (headrace_kafka speaks their protocol)."""
