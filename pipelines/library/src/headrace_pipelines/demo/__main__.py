"""Run the demo with ``python -m headrace_pipelines.demo``: see ``docs/spark-running.md``. ``KEEP=1`` keeps the demo's
cluster running after the demo."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

from headrace_core.errors import HeadraceError


def main() -> int:
    # pyspark warns of pandas 3, with which it was not tested; the demo uses no pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from ..show import Show
    from .job import run

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    show = Show()
    try:
        summary = run(Path("build/demo"), keep=os.environ.get("KEEP", "") not in ("", "0"), show=show)
    except KeyboardInterrupt:
        show.line("interrupted: Spark and the cluster are stopped")
        return 130
    except HeadraceError as error:
        print(f"demo: failed: {error.code}: {error.message}", file=sys.stderr)
        return 1
    worst = max(summary["by_carrier"].items(), key=lambda item: item[1]["mean_departure_delay_min"])
    show.line(
        f"demo: ok {summary['records_produced']:,} records published, {summary['records_consumed']:,} read, "
        f"{summary['acknowledged_lost']} lost, {summary['late_dropped']} late; worst carrier {worst[0]} "
        f"({worst[1]['mean_departure_delay_min']:.1f} min); {summary['seconds']:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
