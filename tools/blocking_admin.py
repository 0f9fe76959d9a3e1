"""Generate headrace/admin/blocking.py from aio.py: the same calls without async and await.

tools/blocking_admin.py generate    write it
tools/blocking_admin.py check       fail when it does not match aio.py (part of `make check`)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "clients/python/src/headrace/admin/aio.py"
TARGET = SOURCE.with_name("blocking.py")
COMMAND = "tools/blocking_admin.py generate"

#: Replacements, as pairs (text in aio.py, text in blocking.py); every text must occur in aio.py.
DIFFERENCES = (
    (r"\bAsyncAdmin\b", "Admin"),
    (r"\basync (def|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\b(run|end)_async\b", r"\1"),
    # A callback of the I/O thread must not block, so ``close`` raises its error before the client closes anything.
    (r"( +)if self\._calls\.begin_close\(\):", r"\1refuse_to_wait()\n\g<0>"),
    (r".*\brefuse_other_loops\b.*\n", ""),
    (r'\A"""[^"]*"""', f'"""Admin: AsyncAdmin without async. Generated from aio.py by {COMMAND}: change aio.py."""'),
    (r"from \.\.cluster_models ", r"from ..callbacks import refuse_to_wait\n\g<0>"),
)


def blocking(source: str) -> str:
    for pattern, replacement in DIFFERENCES:
        source, count = re.subn(pattern, replacement, source)
        if not count:
            where = SOURCE.relative_to(ROOT)
            raise SystemExit(f"{where}: no text matches {pattern!r}; correct DIFFERENCES in {Path(__file__).name}")
    ruff = [str(Path(sys.executable).with_name("ruff")), "format", "--quiet", f"--stdin-filename={TARGET}", "-"]
    formatted: str = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return formatted


def main(arguments: list[str]) -> int:
    if arguments not in (["generate"], ["check"]):
        print(__doc__)
        return 2
    wanted = blocking(SOURCE.read_text(encoding="utf-8"))
    if arguments == ["generate"]:
        TARGET.write_text(wanted, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != wanted:
        print(f"{TARGET.relative_to(ROOT)} is not what aio.py says: run .venv/bin/python {COMMAND}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
