"""The transcript of a failed schedule, in plain words and in order."""

from __future__ import annotations

from collections.abc import Iterable


class Story:
    """Lines are kept only on request."""

    def __init__(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self._lines: list[tuple[float, str, str]] = []

    def tell(self, at_ms: float, who: str, what: str) -> None:
        self._lines.append((at_ms, who, what))

    def lines(self, last: int | None = None) -> Iterable[str]:
        """Print a line such as `` 12.345 s controller 2 is leader in term 4``; repeated lines are printed once, with a
        count."""
        shown = self._lines if last is None else self._lines[-last:]
        at = 0
        while at < len(shown):
            time_ms, who, what = shown[at]
            times = 1
            while at + times < len(shown) and shown[at + times][1:] == (who, what):
                times += 1
            yield f"{time_ms / 1_000:10.4f} s  {who:<14} {what}{f' ({times} times)' if times > 1 else ''}"
            at += times
