"""The group coordinator: groups and their offsets, a shard of each partition of __consumer_offsets (see docs/)."""
