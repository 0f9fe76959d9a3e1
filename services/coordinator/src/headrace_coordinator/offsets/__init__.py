"""Committed offsets of groups, and their lag. Pure."""
