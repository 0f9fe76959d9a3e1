"""Settings objects whose fields take their values from declared keys.

@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    segment_bytes: int = from_key(TOPIC, "segment.bytes")

LogConfig()                                               every default, as the keys declare it
LogConfig(**fields_from(LogConfig, TOPIC.parse(given)))   from typed values by key
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .definition import ConfigDef

_KEY, _CONVERT = "config key", "conversion"


def from_key(keys: ConfigDef, name: str, convert: Callable[[Any], Any] | None = None) -> Any:
    """Declare a dataclass field that takes its value and its default from the configuration key ``name``.

    ``convert`` converts the key's value to the field's value, such as minutes to milliseconds.
    """
    default = keys.keys[name].default
    return dataclasses.field(
        default=default if convert is None else convert(default), metadata={_KEY: name, _CONVERT: convert}
    )


def fields_from(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for the class ``settings``. ``values`` maps each configuration key to its typed value. A
    field that is declared with from_key gets the value of its key, converted if the field has a ``convert``."""
    found = {}
    for field in dataclasses.fields(settings):
        if _KEY in field.metadata:
            value, convert = values[field.metadata[_KEY]], field.metadata[_CONVERT]
            found[field.name] = value if convert is None else convert(value)
    return found


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return the name of the key of a field declared with from_key."""
    return str(field.metadata[_KEY])
