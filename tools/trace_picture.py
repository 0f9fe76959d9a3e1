"""Draw docs/pictures/trace.svg: a real trace from a producer over three brokers and Spark to the record of the sink.

    .venv/bin/python tools/trace_picture.py        starts a cluster and Spark, which takes a minute

The run is that of tests/integration/spark/long/test_spark_traces.py. Each bar of the picture is a span. Long pauses
without a span are cut out of the time axis, because Spark's start takes seconds, while the other spans take
milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if TYPE_CHECKING:
    from tests.worlds.telemetry_world import Span

TARGET = ROOT / "docs" / "pictures" / "trace.svg"
WIDTH, LABEL, ROW, TOP = 1_100, 280, 30, 44
CUT_NS = 300_000_000  #: Pauses of this length or more are cut out of the time axis.
GAP = 70  #: Width of a cut, with space for the length of the last span before the cut.
COLOURS = {"headrace-broker": "#0f766e", "headrace-spark": "#c2570c"}
PROGRAM = "#4338ca"


def in_tree_order(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """(depth, span) of each span; children follow their parent, in the order of their start times."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.begin_ns):
        children.setdefault(span.parent if span.parent in known else "", []).append(span)
    found: list[tuple[int, Span]] = []

    def add(parent: str, depth: int) -> None:
        for span in children.get(parent, []):
            found.append((depth, span))
            add(span.span_id, depth + 1)

    add("", 0)
    return found


def pieces_of(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """The parts of the time axis with spans, as (begin, end) in nanoseconds."""
    pieces: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span.begin_ns):
        if pieces and span.begin_ns - pieces[-1][1] < CUT_NS:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], span.end_ns))
        else:
            pieces.append((span.begin_ns, span.end_ns))
    return pieces


def drawn(spans: Sequence[Span]) -> str:
    """The picture as SVG."""
    pieces = pieces_of(spans)
    width = (WIDTH - LABEL - 90 - GAP * (len(pieces) - 1)) / len(pieces)
    zero = pieces[0][0]

    def x_of(time_ns: int) -> float:
        for number, (begin, end) in enumerate(pieces):
            if time_ns <= end:
                return LABEL + number * (width + GAP) + width * max(time_ns - begin, 0) / max(end - begin, 1)
        return LABEL + len(pieces) * (width + GAP)

    rows = in_tree_order(spans)
    height = TOP + ROW * len(rows) + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img">',
        f"<title>Trace {spans[0].trace_id}: {len(spans)} spans</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (begin, end) in enumerate(pieces):
        left = LABEL + number * (width + GAP)
        text = f"{(begin - zero) / 1e6:,.0f} to {(end - zero) / 1e6:,.0f} ms"
        out.append(
            f'<rect x="{left:.1f}" y="{TOP - 8}" width="{width:.1f}" height="{ROW * len(rows)}" fill="#f4f4f5"/>'
        )
        out.append(f'<text x="{left:.1f}" y="24" fill="#52525b">{text}</text>')
    for number, (depth, span) in enumerate(rows):
        y = TOP + number * ROW
        left, right = x_of(span.begin_ns), x_of(span.end_ns)
        colour = COLOURS.get(span.service, PROGRAM)
        out.append(
            f'<text x="{12 + depth * 18}" y="{y + 10}" fill="#18181b">{escape(span.name)}'
            f'<tspan fill="#71717a"> {escape(place_of(span))}</tspan></text>'
        )
        out.append(
            f'<rect x="{left:.1f}" y="{y - 2}" width="{max(right - left, 2):.1f}" height="16" rx="2" fill="{colour}"/>'
        )
        out.append(
            f'<text x="{max(right, left + 2) + 5:.1f}" y="{y + 10}" fill="#52525b">'
            f"{(span.end_ns - span.begin_ns) / 1e6:.1f} ms</text>"
        )
    return "\n".join([*out, "</svg>", ""])


def place_of(span: Span) -> str:
    """The node, task or program that made the span."""
    if "headrace.node.id" in span.attributes:
        return f"broker {span.attributes['headrace.node.id']}"
    if "headrace.spark.stage" in span.attributes:
        return f"Spark, task {span.attributes['headrace.spark.partition']}"
    return {"headrace-spark": "Spark"}.get(span.service, span.service)


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from tests.worlds.telemetry_world import traced_copy

    found = traced_copy()
    TARGET.write_text(drawn([found.sent, *found.spans]))
    print(f"{TARGET.relative_to(ROOT)}: {len(found.spans) + 1} spans of trace {found.sent.trace_id}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
