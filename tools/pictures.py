"""Draw the pictures of the pages: the output of Headrace's own commands on a real cluster, as SVG.

    .venv/bin/python tools/pictures.py                              all of docs/pictures/*.svg, on clusters of their own
    .venv/bin/python tools/pictures.py --bootstrap HOST:PORT --to DIR    of this cluster (makes topics), no recording

Each command of a picture runs in a pseudo terminal of a fixed width. The recording shows the README's first commands,
with the time that each command took. The commands use the default ports, so no other cluster may use these ports. The
recording is a CSS animation that plays once and ends with a picture of the whole session. Viewers without animations
show the picture of the whole session at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer
from headrace.errors import TopicAlreadyExistsError

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 118, 60
HEADRACE = str(Path(sys.executable).with_name("headrace"))

#: A dictionary of picture names, each with the commands to type.
PICTURES = {
    "top": ("top", "--once", "-i", "2"),
    "topics": ("topics", "describe", "orders"),
    "groups": ("groups", "describe", "packers"),
}
_RECORDS_PER_S = 4_000
#: The commands to type in the recording: the README's first commands.
RECORDED = (
    "headrace up --data ./data -d",
    "headrace topics create orders -p 6",
    "echo hello | headrace produce -t orders",
    "headrace consume -t orders -e",
)
_TYPED_PER_S = 20  # characters
_RECORDING_STYLE = """
@keyframes hidden {{ from, to {{ visibility: hidden }} }}
@keyframes typed {{ from {{ clip-path: inset(0 100% 0 0) }} to {{ clip-path: inset(0 0 0 0) }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important }} }}
{styles}"""

# The pictures leave out rich's web fonts, because a picture must not load a file from the network.
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


def on_a_terminal(arguments: Sequence[str], environment: dict[str, str], directory: Path = ROOT) -> str:
    """The output of a command in a terminal of the pictures' width. Raises CalledProcessError when the command
    fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "NO_COLOR"))}
    for key in ("COLUMNS", "LINES"):
        kept.pop(key, None)
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color"} | environment,
        cwd=directory,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # ignore the error: the program has ended and closed its end of the terminal
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, arguments, text)
    return text


def svg(*steps: tuple[str, str], style: str = "{styles}") -> str:
    """Draw a terminal with each command and its output (with the escape sequences of colours and weights)."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for command, shown in steps:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(shown.rstrip("\n")))
    drawn = console.export_svg(title="", code_format=_SVG.replace("{styles}", style), unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def animated(drawn: str, steps: Sequence[tuple[str, str, float]]) -> str:
    """Draw the recording of (command, text, seconds): the recording shows each command as typed text, and its output
    after ``seconds``."""
    lines: list[str] = []  # the style of each line of the terminal
    at = 0.5
    for command, shown, seconds in steps:
        typing = len(command) / _TYPED_PER_S
        lines.append(f"animation:typed {typing:.1f}s steps({len(command)}) {at:.1f}s backwards")
        at += typing + seconds
        lines += [f"animation:hidden {at:.1f}s"] * (shown.rstrip("\n").count("\n") + 1)
        at += 1.0

    def styled(found: re.Match[str]) -> str:
        number = int(found[1])
        return f'{found[0]} style="{lines[number]}"' if number < len(lines) else found[0]

    return re.sub(r'clip-path="url\(#terminal-line-(\d+)\)"', styled, drawn)


def record() -> str:
    """Make the recording with a new cluster on the default ports, which is removed afterwards."""
    place = Path(tempfile.gettempdir()) / "demo"  # the texts of the pictures name this directory
    place.mkdir()
    path = {"PATH": f"{Path(HEADRACE).parent}{os.pathsep}{os.environ['PATH']}"}
    steps = []
    try:
        for command in RECORDED:
            began = time.monotonic()
            shown = on_a_terminal(["bash", "-o", "pipefail", "-c", command], path, place)
            steps.append((command, shown, time.monotonic() - began))
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            on_a_terminal([HEADRACE, "down", "--data", "data", "--delete"], {}, place)
        shutil.rmtree(place)
    return animated(svg(*((command, shown) for command, shown, _ in steps), style=_RECORDING_STYLE), steps)


def draw(bootstrap: str, to: Path) -> list[Path]:
    """Write every picture of the cluster at ``bootstrap``; returns the written files."""
    to.mkdir(parents=True, exist_ok=True)
    made = []
    with _life(bootstrap):
        for name, arguments in PICTURES.items():
            path = to / f"{name}.svg"
            shown = on_a_terminal([HEADRACE, *arguments], {"HEADRACE_BOOTSTRAP_SERVERS": bootstrap})
            path.write_text(svg((f"headrace {' '.join(arguments)}", shown)))
            made.append(path)
    return made


@contextlib.contextmanager
def _life(bootstrap: str) -> Iterator[None]:
    """Prepare the cluster for the pictures: a producer writes orders, and a group reads the orders with some delay."""
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
            raise TimeoutError("group 'packers' has read no record for two minutes")
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Draw the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap", help="HOST:PORT of a running cluster (default: start new clusters)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args(arguments)
    made = []
    if given.bootstrap is None:
        made.append(given.to / "recording.svg")
        made[0].write_text(record())
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap or stack.enter_context(LocalCluster()).bootstrap_servers
        made += draw(bootstrap, given.to)
    for path in made:
        print(f"{path} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
