"""Headrace for Python."""
