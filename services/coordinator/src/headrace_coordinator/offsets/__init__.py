"""Committed offsets of groups, and the groups' lag. Pure."""
