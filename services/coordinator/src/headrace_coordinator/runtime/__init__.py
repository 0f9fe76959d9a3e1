"""Runtime of shards: claim, replay, serve, append; their assignment; waiting requests. ``shard`` is pure."""
