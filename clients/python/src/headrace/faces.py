"""The base class of all clients, which provides ``repr``, refuses copies, and returns results that may be awaited.

Every method of an asyncio client may be awaited, so users need not know which methods wait. Methods that never wait
(assign, seek, pause, metrics, ...) take effect when they are called. Methods that never wait return ``Done``, an
``AwaitableSet`` or an ``AwaitableDict``. Both ``await consumer.pause(tp)`` and a plain ``consumer.pause(tp)`` work,
because ``pause`` returns ``Done`` without a task.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NoReturn, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: Maximum number of topics or partitions that a repr lists.
SHOWN_MAX = 3


class Face:
    """Base class of the clients."""

    def _shown(self) -> list[str]:
        """The parts of the client's repr; its state is the last part."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._shown())}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: its connections belong to this process; create a "
            "new one in the worker process"
        )


class ConsumerFace(Face):
    """Base class of Consumer and AsyncConsumer. With this class a producer recognizes a consumer without importing the
    consumer classes."""

    def _offsets_for_transaction(self) -> Any:
        """The offsets for ``Producer.send_offsets``, as GroupOffsets."""
        raise NotImplementedError


def where(config: dict[str, Any]) -> str:
    return f"bootstrap.servers={','.join(config['bootstrap.servers'])}"


def several(what: str, items: Iterable[object]) -> str:
    """A text with the first few of ``items``, and the number of the other items."""
    found = [str(item) for item in items]
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return f"{what} {', '.join(found[:SHOWN_MAX])}{more}"


class Done:
    """The result of a method without a return value; awaiting the result gives None."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # the ``yield`` makes this function a generator, which ends at once

    def __repr__(self) -> str:
        return "Done()"


DONE = Done()


class AwaitableSet(set[K]):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(set(self))

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield


class AwaitableDict(dict[K, V]):
    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield
