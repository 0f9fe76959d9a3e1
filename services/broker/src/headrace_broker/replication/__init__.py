"""Replication between brokers: I/O around the pure state of a stream's two ends (``partition.push_stream`` and
``partition.follower_joins``).

``follower_streams`` is the follower's side, ``handlers/replication.py`` the leader's side. ``isr_keeper`` asks the
controllers to record changes of the in-sync sets.
"""
