"""The consumer side of consumer groups (KIP-848 over a stream): membership and committed offsets.

    member.py      one member, pure: events and times in; requests, and work for its consumer, out
    membership.py  its stream, on the I/O thread
    commits.py     offsets, committed and fetched

The part of group membership that runs in the caller's thread (events, callbacks, auto-commit) is in consumer/group.py.
"""
