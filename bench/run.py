"""`make bench`: Headrace alone. Codec, gRPC's limit, produce, consume, latency, connections, memory, start.

    run.py [--smoke] [--rounds 3] [--policies commit,os] [--warm-gib 6] [--save]

Each sample is one JSON object per line; a table of medians follows. --smoke is a small, quick run: every workload runs
and passes its check, but its figures mean nothing. Exit 1 when a workload failed.
"""

from __future__ import annotations

import subprocess
import sys

import ours
from measure import PYTHON, ROOT, WORK, Samples, add_lines, begin, flags
from report import finish


def codec(samples: Samples, *, smoke: bool) -> None:
    command = [PYTHON, str(ROOT / "bench" / "codec.py"), *(["--smoke"] if smoke else ["--rounds", "2"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        samples.fail("codec", (done.stdout + done.stderr)[-600:])
    add_lines(samples, done.stdout)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--policies", default="commit,os", help="log.flush of the topics")
    asked = parser.parse_args()
    policies, sizes = asked.policies.split(","), ours.SMOKE if asked.smoke else ours.FULL
    samples = begin(asked)
    for number in range(asked.rounds):
        codec(samples, smoke=asked.smoke)
        ours.grpc_ceiling(samples, sizes)
        with ours.Headrace(WORK / "headrace", sizes) as headrace:
            samples.add("headrace.start", headrace.start_s, "s")
            headrace.memory(samples, "idle")
            for policy in policies:
                headrace.throughput(samples, policy, number=number)
                headrace.latency(samples, policy)
                headrace.connections(samples, policy, count=20 if asked.smoke else 200)
            headrace.throughput(samples, policies[0], acks="all", number=number)
            headrace.memory(samples, "loaded")
    return finish(samples, asked, what="ours")


if __name__ == "__main__":
    sys.exit(main())
