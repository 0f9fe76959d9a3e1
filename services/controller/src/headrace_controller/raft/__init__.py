"""Raft, pure: what a voter must save, append and may commit. No asyncio, files, clock or randomness in here."""

from .node import EntriesFlushed, Entry, EntryKind, HardState, HardStateSaved, RaftNode, Ready, Role

__all__ = ["EntriesFlushed", "Entry", "EntryKind", "HardState", "HardStateSaved", "RaftNode", "Ready", "Role"]
