"""`make verify`: all tests and checks, in resumable shards.

Each shard of `make verify` is a command. A shard that passed for the current files does not run again, so a stopped run
of `make verify` continues with the next shard. State: build/verify/<shard>.json and .log.

    tools/verify.py              run unfinished shards
    tools/verify.py --again      run all
    tools/verify.py NAME...      only these shards
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from generated_part import keep

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build" / "verify"


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of `make verify`: a command and its time limit. After ``seconds_max`` seconds the shard has failed."""

    name: str
    command: tuple[str, ...]
    seconds_max: int


CDC = "tests/integration/frameworks/kafka/test_cdc.py"


def _tests(*arguments: str, **environment: str) -> tuple[str, ...]:
    """A command that runs tests, with all examples and every bound on time."""
    pairs = {"HEADRACE_JUDGE_TIMES": "1", "HEADRACE_EXAMPLES": "all", "HEADRACE_FULL": "1"} | environment
    return ("env", *(f"{key}={value}" for key, value in pairs.items()), "tools/test.sh", *arguments)


def _alone(*arguments: str, **environment: str) -> tuple[str, ...]:
    return _tests(*arguments, TEST_WORKERS="1", **environment)


def _make(*arguments: str) -> tuple[str, ...]:
    return ("make", "--no-print-directory", *arguments)


_SPARK = "tests/integration/spark"
_PIPELINES = "tests/integration/pipelines/long/test"

SHARDS = (
    Shard("check", ("tools/check.sh",), 600),
    Shard("test", _tests("test"), 1800),
    Shard("deep", _tests("deep"), 5400),
    Shard("long-marks", _tests("-m", "long", "tests/integration", "tests/system"), 3600),
    Shard("long-spark", _alone(f"{_SPARK}/long"), 5400),
    Shard(
        "long",
        _alone("tests/docs/long", "tests/integration/pipelines/long", "tests/integration/kafka_protocol/long"),
        3600,
    ),
    Shard("spark-kills", _alone(f"{_SPARK}/long/test_spark_kills.py", HEADRACE_SPARK_KILLS="40"), 7200),
    Shard("fraud", _alone("-m", "", f"{_SPARK}/test_fraud.py", "-k", "flat", HEADRACE_FRAUD_MINUTES="60"), 4800),
    Shard("telemetry", _alone(f"{_SPARK}/long/test_telemetry.py", "-k", "flat", HEADRACE_TELEMETRY_MINUTES="60"), 5700),
    Shard(
        "pipelines-killed",
        _alone(
            f"{_SPARK}/long/test_pipelines_killed.py",
            f"{_PIPELINES}_orders_killed.py",
            f"{_PIPELINES}_scaling_killed.py",
            HEADRACE_PIPELINES_KILLED="all",
        ),
        5400,
    ),
    Shard("leaks", _tests("tests/integration", "-k", "leaks", HEADRACE_FULL_LEAKS="1"), 1200),
    Shard("compaction", _tests("tests/property/log_compaction", HEADRACE_FULL_COMPACTION="1"), 5400),
    Shard(
        "lives",
        _tests("tests/scenarios/broker/test_random_lives_of_a_broker.py", HEADRACE_RANDOM_LIVES="3000"),
        1200,
    ),
    Shard("simulation", _make("sim", "SCHEDULES=10000", "SIM=--transactions 0"), 3600),
    Shard("simulation-transactions", _make("sim", "SCHEDULES=10000", "SIM=--half transactions --mutants none"), 7200),
    Shard("failed-flushes", _make("failed-flushes", "SEEDS=200"), 2400),
    Shard("mutants", _make("mutants"), 7200),
    Shard("fuzz", (sys.executable, "-m", "tests.fuzz.run_fuzz", "--seconds", "600"), 1200),
    Shard("system", _alone("tests/system", HEADRACE_FULL_KILLS="1"), 3600),
    # The fault tests are split into parts, so that a stopped run continues with the next part.
    *(
        Shard(
            f"faults-{part}",
            _alone("tests/system/test_faults.py", HEADRACE_FAULTS="full", HEADRACE_FAULTS_PART=f"{part}/4"),
            3600,
        )
        for part in range(1, 5)
    ),
    *(
        Shard(f"faults-{what}", _alone(f"tests/system/test_{what}_fail.py", HEADRACE_FAULTS="full"), 2700)
        for what in ("groups", "pairs", "registries", "transactions")
    ),
    Shard("soak", _make("soak", "MINUTES=15"), 1500),
    Shard("kafka", ("tools/test_kafka.sh",), 3600),
    Shard("cdc", ("env", "HEADRACE_CDC_SECONDS=600", "HEADRACE_CDC_KILLS=5", "tools/test_kafka.sh", CDC), 2400),
    Shard("client-suites", (sys.executable, "tools/client_suites.py", "check"), 2400),
    Shard("kerberos", ("tools/test_kerberos.sh",), 300),
    Shard("console", ("tools/test_console.sh",), 300),
    Shard("compose", _make("compose-test"), 3600),
    Shard("site", _make("site"), 600),
    Shard("bench-smoke", (sys.executable, "bench/run.py", "--smoke"), 900),
    Shard("demo", _make("demo"), 1200),
)


def fingerprint() -> str:
    """Digest of every file that git tracks or would track, but the page with the results. Results of shards are valid
    only for files with the same digest."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    total = hashlib.sha256()
    for name in sorted(names):
        path = ROOT / os.fsdecode(name)
        if name and path.is_file() and name != b"CONTRIBUTING.md":
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
    result = {
        "files": state,
        "exit": code,
        "seconds": round(seconds, 1),
        "command": shard.command,
        "commit": _git("rev-parse", "--short=8", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
        "seed": os.environ.get("HEADRACE_TEST_SEED", "1"),
    }
    (STATE / f"{shard.name}.json").write_text(json.dumps(result) + "\n")
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or [""]
    print(
        f"verify: {shard.name}: {'ok' if code == 0 else f'FAILED ({code}), see {log}'} ({seconds:.0f} s) {last[0]}",
        flush=True,
    )
    return code == 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def write_table() -> None:
    """The last run of each shard, in CONTRIBUTING.md; a shard without one here keeps its row."""
    page = ROOT / "CONTRIBUTING.md"
    rows = {row.split("|")[1].strip(" `"): row for row in page.read_text().splitlines() if row.startswith("| `")}
    part = "| shard | commit | seed | result | minutes |\n|---|---|---|---|---|\n"
    for shard in SHARDS:
        row = rows.get(shard.name, f"| `{shard.name}` | not run yet | | | |")
        with contextlib.suppress(OSError, ValueError, KeyError):  # no run here, or one of an older version
            saved = json.loads((STATE / f"{shard.name}.json").read_text())
            verdict = "ok" if saved["exit"] == 0 else "failed"
            minutes = saved["seconds"] / 60
            row = f"| `{shard.name}` | {saved['commit']} | {saved['seed']} | {verdict} | {minutes:.1f} |"
        part += row + "\n"
    keep(page, part, tool="verify.py", source="verify.py says", command="generate")


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
    write_table()
    print(f"verify: {'failed: ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
