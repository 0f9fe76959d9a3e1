"""`make bench`: Headrace's own benchmarks, without peers.

    run.py [--smoke] [--rounds 3] [--policies commit,os] [--warm-gib 6] [--save]

Each sample is one JSON object per line; a table of medians follows. --smoke is a small, quick run. A smoke run shows
that every workload runs and passes its check, but its figures mean nothing. Exit 1 when a workload failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import ours
from measure import PYTHON, ROOT, WORK, Samples, emit, machine, save, table, warm_memory


def codec(samples: Samples, *, smoke: bool) -> None:
    """bench/codec.py prints JSON objects {"sample", "value", "unit"}, one per line."""
    command = [PYTHON, str(ROOT / "bench" / "codec.py"), *(["--smoke"] if smoke else ["--rounds", "2"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        samples.fail("codec", (done.stdout + done.stderr)[-600:])
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if "sample" in found:
                samples.add(found["sample"], found["value"], found["unit"])


def headrace_round(headrace: ours.Headrace, samples: Samples, policies: list[str], *, connections: int) -> None:
    for policy in policies:
        headrace.throughput(samples, policy)
        headrace.latency(samples, policy)
        headrace.connections(samples, policy, count=connections)
    headrace.throughput(samples, policies[0], acks="all")
    headrace.memory(samples, "loaded")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policies", default="commit,os")
    parser.add_argument("--warm-gib", type=float, default=6.0)
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    rounds = 1 if asked.smoke else asked.rounds
    sizes = ours.SMOKE if asked.smoke else ours.FULL

    samples = Samples()
    emit(machine=machine())
    if not asked.smoke:
        emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    for _ in range(rounds):
        codec(samples, smoke=asked.smoke)
        ours.grpc_ceiling(samples, sizes)
        with ours.Headrace(WORK / "headrace", sizes) as headrace:
            samples.add("headrace.start", headrace.start_s, "s")
            headrace.memory(samples, "idle")
            headrace_round(headrace, samples, asked.policies.split(","), connections=20 if asked.smoke else 200)
    print(table(samples))
    if asked.save:
        print(save(samples, what="ours", extra={"rounds": rounds}).relative_to(ROOT))
    for failure in samples.failures:
        print(f"failed: {failure}")
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
