"""The storage broker: partitions' logs behind produce and fetch streams."""
