"""The coordinator as a client of brokers and of other coordinators.

The brokers lead the partitions of its shards, the partitions of transactions, and the partitions that groups read. The
other coordinators receive transaction markers for ``__consumer_offsets``.
"""
