"""Committed offsets of groups, and how far behind the log they are. Pure."""
