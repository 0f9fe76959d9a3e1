"""How many examples a property test draws."""

from __future__ import annotations

import os

#: tools/test.sh sets it for `make test-deep`; `make test` draws a tenth, at least five.
ALL = bool(os.environ.get("HEADRACE_EXAMPLES"))


def examples(count: int) -> int:
    return count if ALL else max(5, count // 10)
