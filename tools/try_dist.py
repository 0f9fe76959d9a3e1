"""Install and use the results of `make dist` as a user does: in a new venv outside of the checkout, without a compiler
in PATH.

    tools/try_dist.py                       try with constraints.txt and without it, at the same time tools/try_dist.py
    --without-constraints try only without it

Third-party packages come from the registry that pip is configured for. Headrace's packages come only from dist/, as
wheels; the script checks their origin in pip's report. In the new environment the script first runs `headrace version`
and `headrace up`. The command line and the SDK then send and read a record, and a pytest uses LocalCluster and the
fixtures. The last command is `headrace down`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from install import DISTRIBUTIONS
from version import version

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
COMPILERS = ("cc", "gcc", "clang", "c++", "g++")

SDK = """
import os, sys
from headrace import Consumer, Producer
import headrace, headrace_core.records, headrace_pipelines, headrace_spark
for module in (headrace, headrace_core, headrace_pipelines, headrace_spark):
    assert module.__file__.startswith(sys.prefix), module.__file__
servers = os.environ["HEADRACE_BOOTSTRAP_SERVERS"]
with Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
    producer.send("crates", b"by the SDK").result(timeout=30)
with Consumer(bootstrap_servers=servers, group_id="packers", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["crates"])
    while not (records := consumer.poll(timeout=30.0)):
        pass
print([record.value for record in records])
assert [record.value for record in records] == [b"by the SDK"]
"""

TESTS = """
from headrace import Consumer, LocalCluster, Producer, TopicPartition


def comes_back(servers, topic):
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"one crate", partition=0).result(timeout=30)
    with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        return [record.value for record in consumer.poll(timeout=30)] == [b"one crate"]


def test_a_cluster_of_processes(tmp_path):
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="process") as cluster:
        assert comes_back(cluster.bootstrap_servers, "orders")


def test_the_fixture_of_the_plugin(headrace, headrace_topic):
    assert comes_back(headrace.bootstrap_servers, headrace_topic)
"""


class TrialError(Exception):
    """A distribution could not be installed or used. The message of the error has the output of the failed command."""


class Trial:
    """A trial in an empty venv in ``directory``. ``constraints``: a constraints file for pip, or None."""

    def __init__(self, directory: Path, constraints: Path | None) -> None:
        self.directory = directory
        self.name = f"with {constraints.name}" if constraints else "without constraints"
        self.bin = directory / "venv" / "bin"
        self.constraints = ["--constraint", str(constraints)] if constraints else []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEADRACE_", "PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT", "MAKE", "MFLAGS"))
        }
        self.environment |= {"PATH": str(self.bin), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(self, *command: str, given: str | None = None, limit_s: float = 120) -> str:
        """Run ``command`` in the venv and return its output. Raises TrialError with the whole output when the command
        fails."""
        started = time.monotonic()
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.directory,
            env=self.environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        shown = " ".join(command) if "\n" not in command[-1] else " ".join([*command[:-1], "..."])
        print(f"try_dist: {self.name}: {shown} ({time.monotonic() - started:.1f} s)", flush=True)
        if done.returncode:
            raise TrialError(f"{self.name}: {shown}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def install(self) -> None:
        """Install into the venv, and check that each of our distributions was installed from a wheel in dist/."""
        venv.create(self.directory / "venv", with_pip=True)
        if found := [name for name in COMPILERS if shutil.which(name, path=self.environment["PATH"])]:
            raise TrialError(f"{self.name}: the venv has a compiler in its PATH: {found}")
        wanted = [f"headrace[all]=={version()}", "pytest"]
        report = self.directory / "report.json"
        pip = ["python", "-m", "pip", "install", "--quiet", "--find-links", str(DIST), *self.constraints]
        self.run(*pip, "--report", str(report), *wanted, limit_s=900)
        self.run("python", "-m", "pip", "check")
        sources = {
            item["metadata"]["name"]: item["download_info"]["url"]
            for item in json.loads(report.read_text())["install"]
            if item["metadata"]["name"].split("-")[0] == "headrace"
        }
        if len(sources) != len(DISTRIBUTIONS):
            raise TrialError(
                f"{self.name}: headrace[all] installed only {sorted(sources)}, not all {len(DISTRIBUTIONS)}"
            )
        for name, url in sources.items():
            if not (url.startswith(DIST.as_uri()) and url.endswith(".whl")):
                raise TrialError(f"{self.name}: {name} was installed from {url}, not from a wheel in dist/")

    def use(self) -> None:
        """Run the README's first commands on a small cluster."""
        output = self.run("headrace", "version")
        if output.strip() != version():
            raise TrialError(f"{self.name}: headrace version says {output!r}, not {version()}")
        small = ["--brokers", "1", "--controllers", "1", "--port", "0"]
        self.run("headrace", "up", "--data", "data", *small, "--detach")
        try:
            nodes = json.loads(self.run("headrace", "ps", "--data", "data", "-o", "json"))
            broker = next(node for node in nodes if node["role"] == "broker")
            self.environment["HEADRACE_BOOTSTRAP_SERVERS"] = broker["address"]
            self.run("headrace", "produce", "-t", "orders", given="one crate\n")
            read = self.run("headrace", "consume", "-t", "orders", "-e")
            if read != "one crate\n":
                raise TrialError(f"{self.name}: headrace consume printed {read!r}, not the record that was sent")
            self.run("python", "-c", SDK)
        finally:
            self.run("headrace", "down", "--data", "data")
        (self.directory / "test_own.py").write_text(TESTS)
        output = self.run("python", "-m", "pytest", "-q", "test_own.py", limit_s=240)
        if "2 passed" not in output:
            raise TrialError(f"{self.name}: expected 2 tests to pass\n{output}")


def attempt(constraints: Path | None) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-try-") as directory:
        trial = Trial(Path(directory), constraints)
        trial.install()
        trial.use()
        print(f"try_dist: {trial.name}: ok in {time.monotonic() - started:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-constraints", action="store_true", help="skip the trial with constraints.txt")
    arguments = parser.parse_args()
    if not any(DIST.glob("headrace-*.whl")):
        print("try_dist: no wheels in dist/; run make dist first", file=sys.stderr)
        return 2
    trials = [None] if arguments.without_constraints else [ROOT / "constraints.txt", None]
    with ThreadPoolExecutor(len(trials)) as threads:
        try:
            list(threads.map(attempt, trials))
        except (TrialError, subprocess.TimeoutExpired) as error:
            print(f"try_dist: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
