"""Messages that are nested too deep for readers: serializers write them, and every parser refuses them."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

#: The levels of messages within a message that Protobuf's parsers take (C++, Java and Python alike).
DEPTH_MAX: Final = 100
#: The longest path in an error; the rest is cut.
_PATH_CHARACTERS: Final = 60


def may_be_too_deep(message: Descriptor) -> bool:
    """Whether a value of this type may have more than DEPTH_MAX levels: its type contains itself, is a chain of that
    many types, or has extensions, whose types are not known here."""
    levels: dict[str, int] = {}  # of each finished type
    above: set[str] = set()
    waiting = [(message, False)]
    while waiting:
        each, is_finished = waiting.pop()
        below = [field.message_type for field in each.fields if field.message_type is not None]
        if is_finished:
            above.discard(each.full_name)
            levels[each.full_name] = 1 + max((levels[one.full_name] for one in below), default=0)
            if levels[each.full_name] > DEPTH_MAX:
                return True
        elif each.full_name not in levels:
            if each.is_extendable:
                return True
            above.add(each.full_name)
            if any(one.full_name in above for one in below):
                return True
            waiting.append((each, True))
            waiting += [(one, False) for one in below]
    return False


def too_deep_path(message: Message) -> str:
    """The path to the first message below DEPTH_MAX levels; "" if there is none."""
    waiting = [(message, "", 0)]
    while waiting:
        each, path, depth = waiting.pop()
        if depth > DEPTH_MAX:
            return path if len(path) <= _PATH_CHARACTERS else f"{path[:_PATH_CHARACTERS]}..."
        for field, value in each.ListFields():
            kind = field.message_type
            if kind is None:
                continue
            at = f"{path}.{field.name}" if path else field.name
            if kind.GetOptions().map_entry:  # (the entry is a message too)
                if kind.fields_by_name["value"].message_type is not None:
                    waiting += [(item, f"{at}[{key}]", depth + 2) for key, item in value.items()]
            elif isinstance(value, Message):
                waiting.append((value, at, depth + 1))
            else:
                waiting += [(item, f"{at}[{number}]", depth + 1) for number, item in enumerate(value)]
    return ""
