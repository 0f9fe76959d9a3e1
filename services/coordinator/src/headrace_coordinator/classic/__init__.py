"""Kafka's classic groups: the members choose the assignor, and one of them computes the assignment. Pure."""
