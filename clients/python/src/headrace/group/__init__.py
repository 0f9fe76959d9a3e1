"""The consumer side of groups (KIP-848 on a stream): membership and committed offsets.

    member.py      one member, pure: events and times in; requests, and work for its consumer, out
    membership.py  its stream, on the I/O thread
    commits.py     offsets, committed and fetched

The caller's side (events, callbacks, auto-commit) is in consumer/group.py.
"""
