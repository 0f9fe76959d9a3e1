"""Whoever sets a key that does nothing here is told so, and what stands in its place."""

from __future__ import annotations

from collections.abc import Iterable

from .output import note


def tell_notes(kind: str, keys: Iterable[str]) -> None:
    """On stderr; ``kind``: "topic" or "broker". What this release does not know, a newer cluster may."""
    from headrace_core.config.server_keys import SERVER
    from headrace_core.config.topic_keys import TOPIC
    from headrace_core.errors import InvalidConfigError

    declared = TOPIC if kind == "topic" else SERVER
    for key in keys:
        try:
            lines = declared.notes([key])
        except InvalidConfigError:
            continue
        for line in lines:
            note(f"note: {line}")
