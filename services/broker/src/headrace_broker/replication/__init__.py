"""Replication between brokers: I/O around the pure state of a stream's two ends (``partition.leader_lane`` and
``partition.follower_lane``).

``follower_streams`` is the follower's side, ``handlers/replication.py`` the leader's side; ``wire`` converts their
messages to and from protobuf. ``isr_keeper`` asks the controllers to record changes of the in-sync sets.
"""
