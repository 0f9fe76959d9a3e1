"""The storage broker: partition logs, served over produce and fetch streams."""
