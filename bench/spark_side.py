"""Spark's part of the comparison: bench/spark.py in a process of its own (it keeps a JVM), its samples into ours."""

from __future__ import annotations

import json

from measure import PYTHON, ROOT, Samples, run


def measure(samples: Samples, rounds: int) -> None:
    """Runs bench/spark.py, which prints JSON objects {"sample", "value", "unit"}, one a line."""
    script = ROOT / "bench" / "spark.py"
    if not script.exists():
        samples.fail("spark", f"{script.relative_to(ROOT)} is not there")
        return
    for line in run([PYTHON, str(script), "--rounds", str(rounds)], timeout_s=1200).splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if "sample" in found:
                samples.add(found["sample"], found["value"], found["unit"])
