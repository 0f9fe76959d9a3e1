"""The maximum size of responses that answer for several items of a request.

A small request can name many large items, or the same large group a thousand times. Therefore the limits on a request
are not enough, and the response has a limit too.
"""

from __future__ import annotations

from ..errors import InvalidRequestError

#: Size in bytes at which a response takes no further items. In memory a response takes up to six times its encoded
#: size.
RESPONSE_BYTES_MAX = 16 * 1024 * 1024


class ResponseRoom:
    """Counts the bytes of one response. Call ``check`` before the answer for each item, and ``add`` after the
    answer."""

    __slots__ = ("_size",)

    def __init__(self) -> None:
        self._size = 0

    def check(self) -> None:
        """Raise InvalidRequestError if the response has reached its maximum size, so that it takes no further item."""
        if self._size >= RESPONSE_BYTES_MAX:
            raise InvalidRequestError(
                f"the response has reached its limit of {RESPONSE_BYTES_MAX} bytes, so this item was left out; request "
                "it separately"
            )

    def add(self, size: int) -> None:
        """Count an answer of ``size`` bytes."""
        self._size += size
