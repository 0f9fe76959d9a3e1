"""What keeps shards alive: claim, replay, serve, append; whose they are; who waits for what. ``shard`` is pure."""
