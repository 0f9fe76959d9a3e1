"""The consumer's side of groups (KIP-848 on a stream): membership, and committed offsets.

member.py      one member, pure: what it is told and when -> what it says, and what its consumer has to do
membership.py  its stream, on the I/O thread
commits.py     offsets, committed and fetched
consumer.py    what the caller's side of a consumer knows of its group: events, callbacks, auto-commit
"""
