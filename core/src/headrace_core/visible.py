"""Make untrusted text safe to show: any client chooses the names of groups, clients and transactions, and the contents
of records. Pure.

A control character in a name could move the cursor of a terminal, rename its window or begin a forged line.
A character that reorders text could make a name look like another name.
"""

from __future__ import annotations

import re

#: Control characters (without tab and newline), and characters that reorder text or have no width.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
)
_IN_TEXT, _IN_LINE = re.compile(f"[{_HIDDEN}]"), re.compile(f"[\t\n{_HIDDEN}]")


def escaped(text: str) -> str:
    """Return ``text`` with visible escapes in place of characters that hide, reorder or control text. Tabs and newlines
    stay."""
    return _IN_TEXT.sub(_escape, text)


def one_line(text: str) -> str:
    """Like ``escaped``, but escape tabs and newlines too; for a name within a line."""
    return _IN_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
