"""kcat's ``-o``: where to start, and where to stop. Pure.

    beginning (earliest)  end (latest)  stored  N (absolute)  -N (the last N)  s@MS (from a time)  e@MS (up to a time)

``s@`` and ``e@`` may be given together, as two ``-o``. Source: kcat(1), option -o.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace_core.errors import InvalidArgumentError, UnsupportedVersionError


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What the ``-o`` options ask for. At most one of the three starts is set; none means the beginning."""

    at: int | None = None  # an absolute offset, or -N: N before the end
    from_end: bool = False
    start_ms: int | None = None
    stop_ms: int | None = None

    def start(self, beginning: int, end: int, by_time: int | None) -> int:
        """The first offset to read of a partition that holds [beginning, end). ``by_time``: the offset found for
        ``start_ms``, None when no record is that late. An offset whose record is gone means the first there is, so
        that nothing that can be read is left out; one beyond the end is kept. ``_Choice`` in consume.py, which knows
        auto.offset.reset, looks at both."""
        if self.from_end:
            return end
        if self.start_ms is not None:
            return end if by_time is None else by_time
        if self.at is None:
            return beginning
        return max(beginning, end + self.at if self.at < 0 else self.at)


def parse_offsets(given: Iterable[str]) -> OffsetRange:
    """The range of one or more ``-o``; InvalidArgumentError says what an ``-o`` may be."""
    at: int | None = None
    from_end = False
    start_ms: int | None = None
    stop_ms: int | None = None
    starts = 0
    for text in given:
        name = text.strip().lower()
        if name == "stored":
            raise UnsupportedVersionError("-o stored: a group goes on where it committed: use -G GROUP TOPIC...")
        if re.fullmatch(r"e@\d+", name):
            if stop_ms is not None:
                raise InvalidArgumentError("-o e@MS is given twice")
            stop_ms = int(name[2:])
            continue
        starts += 1
        if name in ("end", "latest"):
            from_end = True
        elif re.fullmatch(r"s@\d+", name):
            start_ms = int(name[2:])
        elif re.fullmatch(r"-?\d+", name):
            at = int(name)
        elif name not in ("beginning", "earliest"):
            raise InvalidArgumentError(
                f"-o {text}: must be beginning, end, stored, N, -N, s@MS, e@MS (MS: milliseconds since 1970), or json"
            )
    if starts > 1:
        raise InvalidArgumentError("-o: only one start can be given (s@MS and e@MS go together)")
    return OffsetRange(at=at, from_end=from_end, start_ms=start_ms, stop_ms=stop_ms)
