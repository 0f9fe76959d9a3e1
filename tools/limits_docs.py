"""Generate the table of docs/reference/limits.md from the declarations in headrace_core.rpc.limits.

tools/limits_docs.py generate    write it
tools/limits_docs.py check       fail when it does not match the declarations (part of `make check`)
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated_part import keep

from headrace_core.rpc.limits import LIMITS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "limits.md"


def rendered() -> str:
    """The generated page has two tables: calls whose requests have lists, and calls whose requests have no lists."""
    lines = ["| call | at most | bytes |", "|---|---|---|"]
    short = []
    for method, limits in LIMITS.items():
        size = _size(limits.bytes_max)
        if limits.items:
            items = "; ".join(f"{most:,} `{path}`" for path, most in limits.items.items())
            lines.append(f"| `{method}` | {items} | {size} |")
        else:
            short.append(f"`{method}`")
    return "\n".join(
        [*lines, "", "A request of the following calls has at most 64 KiB and no lists:", "", ", ".join(short), ""]
    )


def _size(size: int) -> str:
    if size >= 1 << 31:
        return "the listener's"
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main(command: str) -> int:
    return keep(PAGE, rendered(), tool=Path(__file__).name, source="headrace_core.rpc.limits declares", command=command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
