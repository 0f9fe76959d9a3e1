"""Messages that say why a row could not be decoded or encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ._arrow import Fault


def joined(path: str, name: str) -> str:
    """The path of a field."""
    return f"{path}.{name}" if path else name


class Words:
    """Makes the message for a bad row. ``names`` maps a record's node to its field names. ``labels`` maps other nodes
    to the words for their messages (the name of an enum and its symbols, or the reason of a refusal)."""

    def __init__(self) -> None:
        self.names: dict[int, Sequence[str]] = {}
        self.labels: dict[int, tuple[str, Sequence[str]]] = {}

    def said(self, fault: int, node: int, detail: int, frames: Iterable[int]) -> str:
        label, symbols = self.labels.get(node, ("", ()))
        if fault in (Fault.SHORT, Fault.MAGIC):
            return _FRAME[fault](detail)
        said = _REASONS[fault]
        reason = said(detail, label, symbols) if callable(said) else said
        return f"{self._path(frames) or 'the value'}: {reason}"

    def _path(self, frames: Iterable[int]) -> str:
        flat = list(frames)
        path = ""
        for node, at in reversed(list(zip(flat[::2], flat[1::2], strict=True))):
            path = f"{path}[{at}]" if node < 0 else joined(path, self.names[node][at])
        return path


_FRAME: Final[Mapping[int, Callable[[int], str]]] = {
    Fault.SHORT: lambda detail: (
        f"{detail} bytes are too short for a magic byte and a schema id: the data was not written by a schema "
        "serializer"
    ),
    Fault.MAGIC: lambda detail: (
        f"the first byte is {detail}, not the magic byte 0: the data was not written by a schema serializer"
    ),
}
_REASONS: Final[Mapping[int, str | Callable[[int, str, Sequence[str]], str]]] = {
    Fault.ENDS: "the data ends too early",
    Fault.NUMBER: "a number is longer than 64 bits",
    Fault.NO_BOOLEAN: lambda detail, _, __: f"a boolean has the byte {detail}",
    Fault.LENGTH: lambda detail, _, __: f"the length is {detail} bytes, and fewer are left",
    Fault.INT_RANGE: lambda detail, _, __: f"{detail} does not fit into an int of 32 bits",
    Fault.NO_TEXT: "a string is not UTF-8",
    Fault.BLOCK: lambda detail, _, __: f"a block has an impossible number of items or size ({detail})",
    Fault.NESTED: "the value is nested more than 127 levels deep",
    Fault.NO_SYMBOL: lambda detail, label, _: f"is not a symbol of enum {label} (position {detail})",
    Fault.UNKNOWN_SYMBOL: lambda detail, label, symbols: (
        f"the symbol {symbols[detail]} is unknown to the reader's enum {label}, which has no default"
    ),
    Fault.NO_BRANCH: lambda detail, _, __: f"a union has no branch {detail}",
    Fault.REFUSED: lambda _, label, __: label,
    Fault.RANGE: lambda detail, label, _: f"{detail} is beyond the range of its type{label and f' ({label})'}",
    Fault.DIGITS: "a decimal has more digits than its precision allows",
    Fault.LEFT_OVER: lambda detail, _, __: f"{detail} bytes are left after the value",
    Fault.TOO_LARGE: "the value needs too much memory for its bytes",
    Fault.IS_NULL: "is null, and the schema does not allow null",
    Fault.FIXED_SIZE: lambda detail, label, _: f"has {detail} bytes, and the schema has fixed {label}",
    Fault.NOT_EXACT: lambda detail, _, __: f"{detail} would lose digits as a floating-point number; cast it yourself",
    Fault.NO_UUID: "is not a UUID such as 123e4567-e89b-12d3-a456-426614174000",
    Fault.NO_MEMBER: lambda _, label, __: f"must have exactly one value among {label}",
}
