"""Replication between brokers: the shells around the pure lanes (``partition.leader_lane`` and
``partition.follower_lane``, the two ends of a stream).

``follower_streams`` is the follower's shell, ``handlers/replication.py`` the leader's; ``wire`` translates their
messages. ``isr_keeper`` has the controllers record the in-sync sets.
"""
