"""The cluster's state as far as this broker has applied it; coordinators keep it the same way, so it is in the core."""

from headrace_core.rpc.metadata_state import MetadataState, Watcher

__all__ = ["MetadataState", "Watcher"]
