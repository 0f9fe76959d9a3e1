"""What a program may subscribe to, and the errors of a consumer that is used in another way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import IllegalStateError, InvalidArgumentError, InvalidGroupIdError

from .. import arguments
from ..group.member import Subscription


def subscription_of(topics: Iterable[str] | None, pattern: str | None) -> Subscription:
    """Raises InvalidArgumentError, InvalidTopicError."""
    if isinstance(topics, str):
        raise InvalidArgumentError(f"subscribe needs a list of topics, such as [{topics!r}], or pattern=...")
    if (topics is None) == (pattern is None):
        raise InvalidArgumentError("subscribe needs either topics or a pattern, not both")
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern:
            raise InvalidArgumentError(
                f"pattern {pattern!r}: must be a regular expression (RE2) that matches whole topic names"
            )
        arguments.text("pattern", pattern)
        return Subscription(pattern=pattern)
    names = tuple(dict.fromkeys(map(arguments.topic, arguments.items("topics", topics, "topic names"))))
    return Subscription(names)


def check_group(config: Mapping[str, Any], what: str) -> None:
    """Raise InvalidGroupIdError if the configuration has no ``group.id``."""
    if not config["group.id"]:
        raise InvalidGroupIdError(f"{what} needs a consumer group: set group.id")


def not_both(subscribed: bool) -> IllegalStateError:
    return IllegalStateError(
        "cannot assign partitions: the consumer is subscribed to topics; call unsubscribe() first"
        if subscribed
        else "cannot subscribe: partitions are assigned to the consumer by assign(); call unsubscribe() first"
    )
