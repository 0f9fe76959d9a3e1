"""Short ways to declare the server's keys; the type follows from the default unless it is said."""

from __future__ import annotations

from typing import Any

from ..config import ConfigKey, Kind

_KINDS = {bool: Kind.BOOLEAN, int: Kind.INT, float: Kind.DOUBLE, str: Kind.STRING, list: Kind.LIST}


def honoured(name: str, default: Any, doc: str, **more: Any) -> ConfigKey:
    """A key that does what its documentation says. ``more``: further fields of ConfigKey (kind, low, high, ...)."""
    kind = more.pop("kind", None) or _KINDS.get(type(default), Kind.STRING)
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, **more)


def accepted(name: str, default: Any, doc: str, note: str, **more: Any) -> ConfigKey:
    """A key of Kafka's that something else stands in for: ``note``."""
    return honoured(name, default, doc, note=note, **more)


def refused(name: str, default: Any, doc: str, refusal: str, **more: Any) -> ConfigKey:
    """A key of Kafka's that nothing stands in for: any value but the default is an error that says ``refusal``."""
    return honoured(name, default, doc, refusal=refusal, **more)
