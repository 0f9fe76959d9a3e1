"""Format a count with its noun in singular or plural: ``counted(1, "partition")`` is "1 partition"."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count and its noun, such as ``2 partitions``, with commas from 1,000 on. ``plural``: the plural form, if
    it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
