"""The style that the charts of all pipelines share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INK, FAINT = "#222222", "#8a8a8a"


@contextmanager
def charts(font_size: float = 11) -> Iterator[Any]:
    """Matplotlib's pyplot without a display, in the style of the library while the block runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style: Any = {
        "font.size": font_size, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK, "savefig.dpi": 150,
        "figure.facecolor": "white",
    }  # fmt: skip
    with plt.rc_context(style):
        yield plt
