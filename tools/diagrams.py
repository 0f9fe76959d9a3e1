"""Draw the pages' Mermaid diagrams as SVG for the site, without a script and without files from another host.

GitHub draws Mermaid diagrams itself. This tool draws the parts of Mermaid that the pages use: sequence diagrams
(participants, messages, lost messages), and flowcharts of nodes, subgraphs and labelled edges. The tool draws both
kinds of diagrams as columns with an arrow in each row. Mermaid syntax that the tool cannot draw raises a ValueError, so
the site's build fails instead of showing half a diagram.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from html import escape

CHARACTER, LINE = 7.0, 17.0  # width of a character and height of a line of text, in pixels
COLUMNS_OF_A_LABEL = 30
MARGIN = 12.0

_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+)(->>|--x)(\w+): (.+)")
_NODE = re.compile(r'(\w+)\["(.+)"\]')
_EDGE = re.compile(r'(\w+)(?: -- "(.+)")? --> (\w+)')


@dataclass(frozen=True)
class Arrow:
    """An arrow of a diagram. ``lost``: the message does not arrive."""

    start: int
    end: int
    label: str
    lost: bool = False

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.label, COLUMNS_OF_A_LABEL, break_long_words=False) or [""]


@dataclass
class Diagram:
    """A diagram: the labels of its columns, groups of columns as (name, first column, last column), and arrows from top
    to bottom."""

    labels: list[list[str]] = field(default_factory=list)
    groups: list[tuple[str, int, int]] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def parsed(source: str) -> Diagram:
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind not in ("sequenceDiagram", "flowchart LR"):
        raise ValueError(f"cannot draw a Mermaid diagram of this kind: {kind!r}")
    diagram = Diagram()
    names: dict[str, int] = {}
    group: tuple[str, int] | None = None
    for line in lines:
        if (found := _PARTICIPANT.fullmatch(line)) or (found := _NODE.fullmatch(line)):
            names[found[1]] = len(names)
            label = found[2] or found[1]
            diagram.labels.append([each for part in label.split("<br/>") for each in textwrap.wrap(part, 20)])
        elif found := _MESSAGE.fullmatch(line):
            diagram.arrows.append(Arrow(names[found[1]], names[found[3]], found[4], lost=found[2] == "--x"))
        elif found := _EDGE.fullmatch(line):
            diagram.arrows.append(Arrow(names[found[1]], names[found[3]], found[2] or "uses"))
        elif line.startswith("subgraph "):
            group = (line.removeprefix("subgraph "), len(names))
        elif line == "end" and group is not None:
            diagram.groups.append((*group, len(names) - 1))
        else:
            raise ValueError(f"cannot draw this line of a Mermaid diagram: {line!r}")
    return diagram


def columns(diagram: Diagram) -> list[float]:
    """The x positions of the middle of each column and of the right edge, as close together as labels and texts
    permit."""
    widths = [max(map(len, label)) * CHARACTER + 2 * MARGIN for label in diagram.labels]
    at = [MARGIN + widths[0] / 2]
    for column, width in enumerate(widths[1:], 1):
        least = at[-1] + (widths[column - 1] + width) / 2 + 2 * MARGIN
        for arrow in diagram.arrows:
            left, right = sorted((arrow.start, arrow.end))
            text = max(map(len, arrow.lines)) * CHARACTER + 3 * MARGIN
            if right == column != left or left == right == column - 1:
                least = max(least, at[left] + text + (2 * MARGIN if left == right else 0))
        at.append(least)
    end = at[-1] + widths[-1] / 2
    for arrow in diagram.arrows:
        if arrow.start == arrow.end == len(widths) - 1:
            end = max(end, at[-1] + max(map(len, arrow.lines)) * CHARACTER + 4 * MARGIN)
    return [*at, end + MARGIN]


def svg(source: str) -> str:
    """The diagram as one line of HTML. The diagram has the colours of the text around it."""
    diagram = parsed(source)
    *at, width = columns(diagram)
    shapes: list[str] = []
    texts: list[str] = []

    def text(x: float, y: float, label: str, more: str = 'text-anchor="middle"') -> None:
        texts.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(label)}</text>')

    def line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> None:
        shapes.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" {more}/>')

    y = MARGIN
    halves = [max(map(len, label)) * CHARACTER / 2 + MARGIN for label in diagram.labels]
    for name, first, last in diagram.groups:
        text((at[first] + at[last]) / 2, y + LINE - 4, name)
        line(at[first] - halves[first], y + LINE + 3, at[last] + halves[last], y + LINE + 3)
    y += (LINE + MARGIN) * bool(diagram.groups)
    height = max(map(len, diagram.labels)) * LINE + MARGIN
    for x, half, label in zip(at, halves, diagram.labels, strict=True):
        shapes.append(
            f'<rect x="{x - half:.0f}" y="{y:.0f}" width="{2 * half:.0f}" height="{height:.0f}" rx="4" fill="none"/>'
        )
        for number, each in enumerate(label, 1):
            text(
                x, y + number * LINE, each, f'text-anchor="middle" font-weight="{"bold" if number == 1 else "normal"}"'
            )
    y = top = y + height
    for arrow in diagram.arrows:
        x1, x2 = at[arrow.start], at[arrow.end]
        own = arrow.start == arrow.end
        y += MARGIN
        for said in arrow.lines:
            y += LINE
            if own:
                text(x1 + 2.5 * MARGIN, y - LINE / 2 + 4, said, "")
            else:
                text((x1 + x2) / 2, y - 5, said)
        if own:
            begin = y - len(arrow.lines) * LINE
            shapes.append(
                f'<path d="M{x1:.0f} {begin:.0f}h{1.8 * MARGIN:.0f}v{y - begin:.0f}h-{1.8 * MARGIN:.0f}" fill="none"/>'
            )
            x1, x2 = x1 + 1, x1
        else:
            line(x1, y, x2, y, 'stroke-dasharray="5 4"' if arrow.lost else "")
        back = 6 if x2 < x1 else -6
        if arrow.lost:
            x2 += back
            line(x2 - 5, y - 5, x2 + 5, y + 5)
            line(x2 - 5, y + 5, x2 + 5, y - 5)
        else:
            shapes.append(f'<path d="M{x2:.0f} {y:.0f}l{back} -4v8z" fill="currentColor"/>')
    y += 2 * MARGIN
    lives = "".join(f'<line x1="{x:.0f}" y1="{top:.0f}" x2="{x:.0f}" y2="{y:.0f}" stroke-opacity="0.3"/>' for x in at)
    summary = "; ".join(arrow.label for arrow in diagram.arrows)
    return (
        f'<div class="diagram"><svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(summary)}" '
        f'viewBox="0 0 {width:.0f} {y:.0f}" width="{width:.0f}" style="max-width:100%;height:auto" fill="currentColor" '
        f'font-family="sans-serif" font-size="13"><g stroke="currentColor">{lives}{"".join(shapes)}</g>{"".join(texts)}'
        "</svg></div>"
    )


def drawn(page: str) -> str:
    """Replace each Mermaid block in the text of a page by a picture."""
    return re.sub(r"^```mermaid\n(.*?)^```$", lambda found: svg(found[1]), page, flags=re.DOTALL | re.MULTILINE)
