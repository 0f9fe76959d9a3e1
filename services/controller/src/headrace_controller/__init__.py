"""The metadata quorum: Raft over the metadata log, and the cluster's rules."""
