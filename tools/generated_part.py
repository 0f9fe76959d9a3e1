"""The generated part of a page, between two comments: write it, or check that it is up to date."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end -->\n"


def keep(page: Path, part: str, *, tool: str, source: str, command: str) -> int:
    """Replace the part of ``page`` that ``tool`` generates by ``part`` if ``command`` is "generate"; otherwise compare
    them. Returns the exit code. ``source``: the text that names the source of the part in the message."""
    begin = f"<!-- begin: tools/{tool} -->\n"
    text = page.read_text()
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{begin}{part}{END}{tail}"
    if command == "generate":
        page.write_text(wanted)
    elif text != wanted:
        print(f"{page.name} is not what {source}: run tools/{tool} generate")
        return 1
    return 0
