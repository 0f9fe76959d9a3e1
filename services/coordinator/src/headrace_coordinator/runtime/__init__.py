"""The runtime of shards: claim, replay, serve and append; assignment of shards; waiting requests. ``shard`` is pure."""
