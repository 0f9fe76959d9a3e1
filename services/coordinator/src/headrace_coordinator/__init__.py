"""The group coordinator: consumer groups and their offsets, in shards, which are the partitions of __consumer_offsets
(see docs/)."""
