"""`make verify`: all tests and checks, in resumable shards.

Each shard of `make verify` is a command. A shard that passed for the current files does not run again, so a stopped run
of `make verify` continues with the next shard. State: build/verify/<shard>.json and .log.

    tools/verify.py              run unfinished shards
    tools/verify.py --again      run all
    tools/verify.py NAME...      only these shards
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build" / "verify"


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of `make verify`: a command and its time limit. After ``seconds_max`` seconds the shard has failed."""

    name: str
    command: tuple[str, ...]
    seconds_max: int


_FAULTS = ("TEST_WORKERS=1", "tools/test.sh", "tests/system/test_faults.py")

SHARDS = (
    Shard("check", ("tools/check.sh",), 600),
    Shard("architecture", ("tools/test.sh", "tests/architecture"), 300),
    Shard("unit", ("tools/test.sh", "tests/unit"), 1200),
    Shard("property", ("env", "HEADRACE_FULL=1", "tools/test.sh", "tests/property"), 1800),
    Shard("scenarios", ("env", "HEADRACE_STORM=50", "tools/test.sh", "tests/scenarios"), 1800),
    Shard("integration", ("tools/test.sh", "tests/integration"), 2400),
    Shard("long", ("tools/test.sh", "-m", "long"), 5400),
    Shard(
        "spark-kills",
        (
            "env",
            "HEADRACE_SPARK_KILLS=40",
            "TEST_WORKERS=1",
            "tools/test.sh",
            "-m",
            "long",
            "tests/integration/spark/long/test_spark_kills.py",
        ),
        7200,
    ),
    Shard(
        "fraud",
        (
            "env",
            "HEADRACE_FRAUD_MINUTES=60",
            "TEST_WORKERS=1",
            "tools/test.sh",
            "-m",
            "long",
            "tests/integration/spark/test_fraud.py",
            "-k",
            "flat",
        ),
        4800,
    ),
    Shard(
        "telemetry",
        (
            "env",
            "HEADRACE_TELEMETRY_MINUTES=60",
            "TEST_WORKERS=1",
            "tools/test.sh",
            "-m",
            "long",
            "tests/integration/spark/long/test_telemetry.py",
            "-k",
            "flat",
        ),
        5700,
    ),
    Shard(
        "pipelines-killed",
        (
            "env",
            "HEADRACE_PIPELINES_KILLED=all",
            "TEST_WORKERS=1",
            "tools/test.sh",
            "-m",
            "long",
            "tests/integration/spark/long/test_pipelines_killed.py",
            "tests/integration/pipelines/long/test_orders_killed.py",
            "tests/integration/pipelines/long/test_scaling_killed.py",
        ),
        5400,
    ),
    Shard("leaks", ("env", "HEADRACE_FULL_LEAKS=1", "tools/test.sh", "tests/integration", "-k", "leaks"), 1200),
    Shard(
        "compaction",
        ("env", "HEADRACE_FULL_COMPACTION=1", "tools/test.sh", "tests/property/log_compaction"),
        5400,
    ),
    Shard(
        "lives",
        (
            "env",
            "HEADRACE_RANDOM_LIVES=3000",
            "tools/test.sh",
            "tests/scenarios/broker/test_random_lives_of_a_broker.py",
        ),
        1200,
    ),
    Shard("simulation", ("make", "--no-print-directory", "sim", "SCHEDULES=10000", "SIM=--transactions 0"), 3600),
    Shard(
        "simulation-transactions",
        ("make", "--no-print-directory", "sim", "SCHEDULES=10000", "SIM=--half transactions --mutants none"),
        7200,
    ),
    Shard("failed-flushes", ("make", "--no-print-directory", "failed-flushes", "SEEDS=200"), 2400),
    Shard("simulation-tests", ("tools/test.sh", "tests/simulation"), 600),
    Shard("fuzz", (sys.executable, "-m", "tests.fuzz.run_fuzz", "--seconds", "600"), 1200),
    Shard("system", ("env", "HEADRACE_FULL_KILLS=1", "tools/test.sh", "tests/system/test_controllers_fail.py"), 1200),
    # The fault tests are split into parts, so that a stopped run continues with the next part.
    *(
        Shard(f"faults-{part}", ("env", "HEADRACE_FAULTS=full", f"HEADRACE_FAULTS_PART={part}/4", *_FAULTS), 3600)
        for part in range(1, 5)
    ),
    Shard(
        "faults-groups",
        ("env", "HEADRACE_FAULTS=full", "TEST_WORKERS=1", "tools/test.sh", "tests/system/test_groups_fail.py"),
        2400,
    ),
    Shard(
        "faults-gateways",
        ("env", "HEADRACE_FAULTS=full", "TEST_WORKERS=1", "tools/test.sh", "tests/system/test_gateways_fail.py"),
        1200,
    ),
    Shard(
        "faults-registries",
        ("env", "HEADRACE_FAULTS=full", "TEST_WORKERS=1", "tools/test.sh", "tests/system/test_registries_fail.py"),
        1800,
    ),
    Shard(
        "faults-transactions",
        (
            "env",
            "HEADRACE_FAULTS=full",
            "TEST_WORKERS=1",
            "tools/test.sh",
            "tests/system/test_transactions_fail.py",
            "tests/system/test_a_transaction_coordinator_dies.py",
        ),
        2700,
    ),
    Shard("soak", ("make", "--no-print-directory", "soak", "MINUTES=15"), 1500),
    Shard("kafka", ("tools/test_kafka.sh",), 1800),
    Shard("kerberos", ("tools/test_kerberos.sh",), 300),
    Shard(
        "cdc",
        (
            "env",
            "HEADRACE_CDC_SECONDS=600",
            "HEADRACE_CDC_KILLS=5",
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "kafka",
            "tests/integration/frameworks/kafka/test_cdc.py",
        ),
        2400,
    ),
    Shard("client-suites", (sys.executable, "tools/client_suites.py", "check"), 2400),
    Shard("bench-smoke", (sys.executable, "bench/run.py", "--smoke"), 900),
    Shard("bench-pipelines-smoke", (sys.executable, "bench/pipelines.py", "--smoke"), 900),
    Shard("demo", (sys.executable, "-m", "headrace_pipelines.demo"), 1200),
)


def fingerprint() -> str:
    """Digest of every file that git tracks or would track. Results of shards are valid only for files with the same
    digest."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    total = hashlib.sha256()
    for name in sorted(names):
        path = ROOT / os.fsdecode(name)
        if name and path.is_file():
            total.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def passed_before(shard: Shard, state: str) -> bool:
    try:
        saved = json.loads((STATE / f"{shard.name}.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(saved.get("files") == state and saved.get("exit") == 0)


def run(shard: Shard, state: str) -> bool:
    started = time.monotonic()
    log = STATE / f"{shard.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            shard.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(shard.seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # kill the whole process group, because tests start clusters
            code = process.wait() or 124
    seconds = time.monotonic() - started
    result = {"files": state, "exit": code, "seconds": round(seconds, 1), "command": shard.command}
    (STATE / f"{shard.name}.json").write_text(json.dumps(result) + "\n")
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or [""]
    print(
        f"verify: {shard.name}: {'ok' if code == 0 else f'FAILED ({code}), see {log}'} ({seconds:.0f} s) {last[0]}",
        flush=True,
    )
    return code == 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="shard", help=", ".join(shard.name for shard in SHARDS))
    parser.add_argument(
        "--again", action="store_true", help="also run shards that have already passed with the current files"
    )
    given = parser.parse_args(arguments)
    again, names = given.again, given.names
    unknown = set(names) - {shard.name for shard in SHARDS}
    if unknown:
        print(f"verify: unknown: {', '.join(sorted(unknown))}; the shards are {', '.join(s.name for s in SHARDS)}")
        return 2
    STATE.mkdir(parents=True, exist_ok=True)
    state = fingerprint()
    failed = []
    for shard in SHARDS:
        if names and shard.name not in names:
            continue
        if not again and passed_before(shard, state):
            print(f"verify: {shard.name}: ok (passed before, and no file has changed since)")
        elif not run(shard, state):
            failed.append(shard.name)
    print(f"verify: {'failed: ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
