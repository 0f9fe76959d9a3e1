"""Spark's part of the comparison: runs bench/spark.py in a separate process (it keeps a JVM) and adds its samples to
ours.

    spark_side.py [--rounds 3] [--only source|sink] [--save]      Spark's part alone; --save writes bench/results
"""

from __future__ import annotations

import argparse
import json
import sys

from measure import PYTHON, ROOT, Samples, emit, machine, run, save, table


def measure(samples: Samples, rounds: int, only: str | None = None) -> None:
    """Run bench/spark.py, which prints JSON objects {"sample", "value", "unit"}, one per line."""
    script = ROOT / "bench" / "spark.py"
    if not script.exists():
        samples.fail("spark", f"{script.relative_to(ROOT)} does not exist")
        return
    command = [PYTHON, str(script), "--rounds", str(rounds), *(["--only", only] if only else [])]
    for line in run(command, timeout_s=1200).splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if "sample" in found:
                samples.add(found["sample"], found["value"], found["unit"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("source", "sink"))
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    samples = Samples()
    emit(machine=machine())
    measure(samples, asked.rounds, asked.only)
    print(table(samples))
    if asked.save:
        print(save(samples, what=f"spark-{asked.only}" if asked.only else "spark", extra={"rounds": asked.rounds}))
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
