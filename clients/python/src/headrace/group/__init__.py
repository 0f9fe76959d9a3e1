"""The consumer's side of groups (KIP-848 on a stream): membership, and committed offsets.

member.py      one member, pure: what it is told and when -> what it says, and what its consumer has to do
membership.py  its stream, on the I/O thread
commits.py     offsets, committed and fetched

What a consumer's caller knows of its group (events, callbacks, auto-commit) is in consumer/group.py.
"""
