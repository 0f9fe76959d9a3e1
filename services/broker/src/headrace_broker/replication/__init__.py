"""How partitions are replicated between brokers: the streams from leaders to followers, and who counts as in sync.

``leading`` and ``following`` are the two ends of a stream, pure; ``wire`` translates what they say; the shells are
``handlers/replication.py`` (the leader's) and ``follower_streams`` (the follower's). ``isr_keeper`` has the controllers
record who is in sync.
"""
