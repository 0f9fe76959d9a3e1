"""How partitions are replicated between brokers: the shells around the pure lanes (``partition.leader_lane`` and
``partition.follower_lane``, the two ends of a stream).

``follower_streams`` is the follower's shell, ``handlers/replication.py`` the leader's; ``wire`` translates what they
say. ``isr_keeper`` has the controllers record who is in sync.
"""
