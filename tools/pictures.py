"""The pictures of the pages: what our own commands show of a real cluster on a terminal, as SVG.

    .venv/bin/python tools/pictures.py                              a cluster of its own; docs/pictures/*.svg
    .venv/bin/python tools/pictures.py --bootstrap HOST:PORT --to DIR    of a cluster that is there (makes topics in it)

Nothing is drawn by hand: each command runs in a pseudo terminal of a fixed width, and what it wrote is set in type.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer
from headrace.errors import TopicAlreadyExistsError

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 118, 60
HEADRACE = str(Path(sys.executable).with_name("headrace"))

#: Name of the picture -> what is typed.
PICTURES = {
    "top": ("top", "--once", "-i", "2"),
    "topics": ("topics", "describe", "orders"),
    "groups": ("groups", "describe", "packers"),
}
_RECORDS_PER_S = 4_000

# Without rich's web fonts: a picture must not call anybody when it is looked at.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def on_a_terminal(arguments: tuple[str, ...], bootstrap: str) -> str:
    """What ``headrace`` writes to a terminal of our width; CalledProcessError when it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    told = kept | {"TERM": "xterm-256color", "HEADRACE_BOOTSTRAP_SERVERS": bootstrap}
    process = subprocess.Popen([HEADRACE, *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=told)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end, when the other end has gone
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, arguments, text)
    return text


def svg(command: str, shown: str) -> str:
    """A terminal in which ``command`` has written ``shown`` (text with the escapes of colours and weights)."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "green"), (command, "bold")))
    console.print(Text.from_ansi(shown.rstrip("\n")))
    drawn = console.export_svg(title="", code_format=_SVG, unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def draw(bootstrap: str, to: Path) -> list[Path]:
    """Write every picture of the cluster at ``bootstrap``; returns the files."""
    to.mkdir(parents=True, exist_ok=True)
    made = []
    with _life(bootstrap):
        for name, arguments in PICTURES.items():
            path = to / f"{name}.svg"
            path.write_text(svg(f"headrace {' '.join(arguments)}", on_a_terminal(arguments, bootstrap)))
            made.append(path)
    return made


@contextlib.contextmanager
def _life(bootstrap: str) -> Iterator[None]:
    """Something to look at: orders come, and a group that reads them, with some delay."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic, partitions in (("orders", 6), ("shipments", 3)):
            with contextlib.suppress(TopicAlreadyExistsError):
                admin.create_topics([NewTopic(topic, partitions=partitions)])
    over, reads = threading.Event(), threading.Event()

    def produce() -> None:
        with Producer(bootstrap_servers=bootstrap) as producer:
            while not over.wait(0.05):
                producer.send_many("orders", [b"one crate of apples"] * (_RECORDS_PER_S // 20))
                producer.send("shipments", b"a lorry")

    def consume() -> None:
        with Consumer(
            bootstrap_servers=bootstrap, group_id="packers", auto_offset_reset="earliest", auto_commit_interval_ms=500
        ) as consumer:
            consumer.subscribe(["orders"])
            while not over.is_set():
                if consumer.poll(timeout=0.2, max_records=1_000):
                    consumer.commit()
                    reads.set()

    threads = [threading.Thread(target=work, daemon=True) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        if not reads.wait(120):
            raise TimeoutError("nobody has read anything for two minutes")
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Draw them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap", help="a cluster that is there (default: one of its own)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap or stack.enter_context(LocalCluster()).bootstrap_servers
        for path in draw(bootstrap, given.to):
            print(f"{path} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
