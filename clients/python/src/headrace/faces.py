"""What all clients answer alike: how they are shown, and why they are not copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

#: So many topics or partitions are shown.
SHOWN_MAX = 3


class Face:
    """Base of the clients."""

    def _shown(self) -> list[str]:
        """What the repr says, the state last."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._shown())}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: its connections belong to this process; "
            "create it in the worker"
        )


def where(config: dict[str, Any]) -> str:
    """The cluster of a client, by its configuration."""
    return f"bootstrap.servers={','.join(config['bootstrap.servers'])}"


def several(what: str, items: Iterable[object]) -> str:
    """A few of ``items``, and how many more there are."""
    found = [str(item) for item in items]
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return f"{what} {', '.join(found[:SHOWN_MAX])}{more}"
