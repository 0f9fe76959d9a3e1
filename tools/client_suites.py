"""Run the test suites of Kafka clients against Apache Kafka or against Headrace, and compare the results.

    client_suites.py run SUITE --against kafka|headrace|nothing   one line per test in build/suites/SUITE-AGAINST.txt
    client_suites.py name SUITE           write tests/suites/SUITE.txt: two runs against Kafka, one against nothing
    client_suites.py compare [SUITE...]   judge the last runs against Headrace by tests/suites/SUITE.txt
    client_suites.py check [SUITE...]     run against Headrace, then compare

The suites come unchanged from their registries: kafka-python from its source distribution, kafka-go from its module.
Each suite expects one broker with id 1 at localhost:9092, which creates missing topics. Apache Kafka's jars come from
HEADRACE_PEERS or from Maven. Headrace has one controller, broker and coordinator.

tests/suites/SUITE.txt names the tests that a suite's server must pass. The named tests pass in two runs against Kafka,
and do not pass without a server. The file differences.txt explains tests that fail on Headrace. ``compare`` fails when
a named test fails without an explanation, and when an explained test passes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from suite_results import (
    DID_NOT_END,
    SuiteError,
    compared,
    leaves,
    nameable,
    outcomes_of_go,
    outcomes_of_junit,
    parse_explanations,
)

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "suites"
NAMED = ROOT / "tests" / "suites"
PYTHON = ROOT / ".venv" / "bin" / "python"
PORT = 9092
SNAPPY = "python-snappy==0.7.3"  #: kafka-python skips its tests of snappy without this package.
KAFKA = "4.3.0"  #: The version of Apache Kafka that the suites expect.
#: Settings that the tool gives to Kafka and to Headrace.
SETTINGS: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}
#: Time limits in seconds for a whole suite, and for one test.
_SUITE_S, _TEST_S = 1500, 120
_NO_SERVER_S = 5  #: Time limit in seconds for one test without a server.


# ---------------------------------------------------------------- files


def read_names(suite: str) -> list[str]:
    """The tests that tests/suites/SUITE.txt names."""
    lines = (NAMED / f"{suite}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def write_names(suite: KafkaPython | KafkaGo, names: Sequence[str]) -> None:
    """Write tests/suites/SUITE.txt."""
    lines = [
        f"# Tests of {suite.name} {suite.version} that pass in two runs against Apache Kafka {KAFKA}, and do not pass",
        f"# without a server. `tools/client_suites.py name {suite.name}` makes this file.",
        *names,
    ]
    path = NAMED / f"{suite.name}.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    print(f"{suite.name}: {len(names)} tests named; {path.relative_to(ROOT)}")


def write_outcomes(suite: str, against: str, outcomes: Mapping[str, str]) -> Path:
    """Write one line per test: the outcome and the name."""
    path = WORK / f"{suite}-{against}.txt"
    path.write_text("".join(f"{outcome}\t{name}\n" for name, outcome in sorted(outcomes.items())))
    return path


def read_outcomes(suite: str, against: str) -> dict[str, str]:
    path = WORK / f"{suite}-{against}.txt"
    if not path.exists():
        raise SuiteError(f"{path} is missing; run `client_suites.py run {suite} --against {against}`")
    return {name: outcome for outcome, _, name in (line.partition("\t") for line in path.read_text().splitlines())}


# ---------------------------------------------------------------- servers


def _command(command: Sequence[str], *, timeout_s: float, **given: object) -> str:
    """Run a command and return its standard output. Raises SuiteError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **given)  # type: ignore[call-overload]
    if done.returncode:
        raise SuiteError(
            f"{' '.join(command[:4])} failed ({done.returncode}): {done.stdout[-800:]}{done.stderr[-800:]}"
        )
    return str(done.stdout)


def _serves() -> bool:
    try:
        socket.create_connection(("127.0.0.1", PORT), 1).close()
    except OSError:
        return False
    return True


def _warm_up() -> None:
    """Wait until the coordinator serves groups: it creates the topic of committed offsets at its first request."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    deadline = time.monotonic() + 90
    while True:
        consumer = Consumer({"bootstrap.servers": f"localhost:{PORT}", "group.id": "warm-up"})
        try:
            consumer.committed([TopicPartition("warm-up", 0)], timeout=30)
            return
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise SuiteError(f"no coordinator at localhost:{PORT}: {error}") from error
        finally:
            consumer.close()


@contextlib.contextmanager
def kafka(settings: Mapping[str, str]) -> Iterator[None]:
    """Apache Kafka with one node, at localhost:9092."""
    sys.path.insert(0, str(ROOT))
    from tests.integration.interop.kafka_peer import jars

    directory = WORK / "kafka"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        controller = f"127.0.0.1:{probe.getsockname()[1]}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{PORT},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://localhost:{PORT}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **SETTINGS,
        **settings,
    }
    config = directory / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    java = ["java", "-Xmx1g", "-cp", f"{jars()}/*"]
    storage = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(config)]
    _command([*java, *storage], timeout_s=120)
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + 90
        while not _serves():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SuiteError(f"Kafka does not serve: {(directory / 'server.log').read_text()[-800:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def headrace(settings: Mapping[str, str]) -> Iterator[None]:
    """Headrace with one node of each role, whose broker listens at localhost:9092."""
    from headrace_tools.local.directory import ClusterDirectory, Topology

    directory = WORK / "headrace"
    shutil.rmtree(directory, ignore_errors=True)
    cluster = ClusterDirectory(directory)
    wanted = Topology(
        brokers=1, controllers=1, coordinators=1, kafka=True, kafka_port=PORT, config={**SETTINGS, **settings}
    )
    started = cluster.up(wanted)
    try:
        if started.state.of_role("broker")[0].kafka_port != PORT:
            raise SuiteError(f"another program uses port {PORT}")
        yield
    finally:
        cluster.down(gently=False)


@contextlib.contextmanager
def nothing(settings: Mapping[str, str]) -> Iterator[None]:
    """No server runs: a test that passes here does not need a server."""
    yield


SERVERS: Mapping[str, Callable[[Mapping[str, str]], contextlib.AbstractContextManager[None]]] = {
    "kafka": kafka,
    "headrace": headrace,
    "nothing": nothing,
}


# ---------------------------------------------------------------- suites


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "KAFKA_VERSION": KAFKA, **more}


def _run_suite(command: Sequence[str], directory: Path, environment: Mapping[str, str], limit_s: float) -> str:
    """Run tests and return what they print. The exit code is ignored, because each test has its own outcome. Ends the
    whole process group after a time limit."""
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


class KafkaPython:
    """kafka-python's integration tests. kafka-python's source distribution lacks two files of the tests: a package
    file, and the module that starts processes. This tool starts the server itself, so it replaces the module that
    starts processes by a stand-in with the same names."""

    name, version = "kafka-python", "3.0.12"
    sha256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
    settings: Mapping[str, str] = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}  # like its CI
    directory = WORK / "kafka-python"

    _SERVICE = '''"""Stands in for the module that starts servers: a server runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("this run has a server already")
'''

    def fetch(self) -> None:
        """Download and unpack the source distribution."""
        shutil.rmtree(self.directory, ignore_errors=True)
        downloads = WORK / "downloads"
        pip = [str(PYTHON), "-m", "pip"]
        wanted = [f"{self.name}=={self.version}", "--no-deps", "--no-binary", ":all:", "-d", str(downloads)]
        _command([*pip, "download", "-q", *wanted], timeout_s=300)
        (archive,) = downloads.glob(f"kafka_python-{self.version}.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != self.sha256:
            raise SuiteError(f"{archive.name} is not the file that this tool expects (sha256 {self.sha256})")
        with tarfile.open(archive) as unpacked:
            unpacked.extractall(WORK, filter="data")
        (WORK / f"kafka_python-{self.version}").rename(self.directory)
        _command([*pip, "install", "-q", "--no-deps", "--target", str(self.directory / "libs"), SNAPPY], timeout_s=300)
        (self.directory / "test" / "__init__.py").touch()
        (self.directory / "test" / "service.py").write_text(self._SERVICE)

    def run(self, against: str) -> dict[str, str]:
        """Run the suite against localhost:9092."""
        report = self.directory / "report.xml"
        report.unlink(missing_ok=True)
        environment = _environment(
            KAFKA_URI=f"kafka://localhost:{PORT}",
            KAFKA_ROOT=str(self.directory),
            PYTHONPATH=f"{self.directory}{os.pathsep}{self.directory / 'libs'}",
        )
        limit_s = _NO_SERVER_S if against == "nothing" else _TEST_S
        command = [str(PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "-ra"]
        command += [f"--timeout={limit_s}", "--timeout-method=signal"]
        command += [f"--junitxml={report}", "test/integration"]
        log = WORK / f"{self.name}-{against}.log"
        log.write_text(_run_suite(command, self.directory, environment, _SUITE_S))
        if not report.exists():
            raise SuiteError(f"kafka-python's tests ended early; see {log}")
        return outcomes_of_junit(report.read_text())


class KafkaGo:
    """kafka-go's tests. This tool skips the tests of package nettest, because the suite's own CI skips them, too."""

    name, version = "kafka-go", "v0.4.51"
    module = "github.com/segmentio/kafka-go"
    checksum = "h1:JgDPPG75tC1rWIS2Me6MwcvXJ6f49UQ4HjAOef71Hno="
    settings: Mapping[str, str] = {"num.partitions": "1"}
    directory = WORK / "kafka-go"
    packages = ("", "compress", "sasl", "topics")  #: The packages with tests that connect to a server.

    def _environment(self) -> dict[str, str]:
        return _environment(KAFKA_SKIP_NETTEST="1", GOTOOLCHAIN="local", GOFLAGS="-mod=mod -buildvcs=false")

    def fetch(self) -> None:
        """Download the module and copy it, because Go keeps modules read-only."""
        shutil.rmtree(self.directory, ignore_errors=True)
        WORK.mkdir(parents=True, exist_ok=True)
        command = ["go", "mod", "download", "-json", f"{self.module}@{self.version}"]
        found = json.loads(_command(command, timeout_s=300, cwd=WORK, env=self._environment()))
        if found["Sum"] != self.checksum:
            raise SuiteError(f"{self.module}@{self.version} has a checksum that differs from the expected one")
        shutil.copytree(found["Dir"], self.directory, copy_function=shutil.copyfile)
        for path in (self.directory, *self.directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def run(self, against: str) -> dict[str, str]:
        """Run the suite against localhost:9092. Each top-level test has a process of its own: a panic in one test would
        end the tests after it. If a panic of a subtest ended other subtests, the other subtests run again, each
        alone."""
        limit_s = _NO_SERVER_S if against == "nothing" else _TEST_S
        outcomes: dict[str, str] = {}
        with (WORK / f"{self.name}-{against}.log").open("w") as log:
            for package in self.packages:
                for test in self._compiled(package):
                    found = self._outcomes(package, f"^{test}$", limit_s, log)
                    for name in [each for each, outcome in leaves(found).items() if outcome == DID_NOT_END]:
                        parts = name.rpartition(":")[2].split("/") if package else name.split("/")
                        if len(parts) > 1:
                            found |= self._outcomes(package, "/".join(f"^{re.escape(p)}$" for p in parts), limit_s, log)
                    outcomes |= found
        return leaves(outcomes)

    def _compiled(self, package: str) -> list[str]:
        """Compile the tests of a package; returns the names of its top-level tests."""
        program, source = WORK / f"{package or 'root'}.test", self.directory / package
        compile_ = ["go", "test", "-c", "-o", str(program), f"{self.module}/{package}".strip("/")]
        _command(compile_, timeout_s=600, cwd=self.directory, env=self._environment())
        tests = [str(program), "-test.list", "^Test"]
        return _command(tests, timeout_s=60, cwd=source, env=self._environment()).split()

    def _outcomes(self, package: str, pattern: str, limit_s: float, log: TextIO) -> dict[str, str]:
        """Run the tests of a package that match a pattern."""
        command = ["go", "tool", "test2json", "-t", "-p", f"{self.module}/{package}".strip("/")]
        command += [str(WORK / f"{package or 'root'}.test"), "-test.v=test2json"]
        command += [f"-test.timeout={limit_s}s", f"-test.run={pattern}"]
        printed = _run_suite(command, self.directory / package, self._environment(), limit_s + 30)
        log.write(printed)
        return outcomes_of_go(printed.splitlines(), self.module)


SUITES = {suite.name: suite for suite in (KafkaPython(), KafkaGo())}


# ---------------------------------------------------------------- commands


def run(suite: KafkaPython | KafkaGo, against: str) -> dict[str, str]:
    """Fetch a suite and run it; returns the outcome by test."""
    if _serves():
        raise SuiteError(f"port {PORT} is in use; stop the server that listens there")
    suite.fetch()
    started = time.monotonic()
    with SERVERS[against](suite.settings):
        if against != "nothing":
            _warm_up()
        outcomes = suite.run(against)
    counts = collections.Counter(outcomes.values())
    shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    path = write_outcomes(suite.name, against, outcomes)
    print(f"{suite.name} against {against}: {shown} ({time.monotonic() - started:.0f} s); {path}", flush=True)
    return outcomes


def name_tests(suite: KafkaPython | KafkaGo) -> None:
    """Write the names of the suite's tests that need a server and pass on Kafka."""
    write_names(suite, nameable([run(suite, "kafka"), run(suite, "kafka")], run(suite, "nothing")))


def compare(suite: KafkaPython | KafkaGo) -> bool:
    """Print how the last run against Headrace differs from Kafka's; returns whether each difference is explained."""
    explanations = parse_explanations((NAMED / "differences.txt").read_text(), suite.name)
    named = read_names(suite.name)
    found = compared(named, read_outcomes(suite.name, "headrace"), explanations)
    for test, outcome in found.failed.items():
        print(f"{suite.name}: {test}: {outcome}, but Kafka passes it")
    for test in found.outdated:
        print(f"{suite.name}: {test}: passes or is not named; remove its explanation")
    for test, why in found.explained.items():
        print(f"{suite.name}: {test}: {why}")
    print(f"{suite.name}: {len(found.passed)} of {len(named)} tests pass on Headrace, {len(found.explained)} explained")
    return found.is_good


def _suite(name: str) -> KafkaPython | KafkaGo:
    if name not in SUITES:
        raise argparse.ArgumentTypeError(f"no suite {name!r}; there are {', '.join(SUITES)}")
    return SUITES[name]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run a suite against a server")
    one.add_argument("--against", choices=sorted(SERVERS), required=True)
    for command in (one, commands.add_parser("name", help="write the names of the tests that pass on Kafka")):
        command.add_argument("suites", type=_suite, metavar="suite", nargs=1)
    for text in ("compare", "check"):
        commands.add_parser(text).add_argument("suites", type=_suite, metavar="suite", nargs="*")
    given = parser.parse_args(arguments)
    chosen = given.suites or list(SUITES.values())
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        if given.command == "run":
            run(chosen[0], given.against)
            return 0
        if given.command == "name":
            name_tests(chosen[0])
            return 0
        if given.command == "check":
            for suite in chosen:
                run(suite, "headrace")
        return int(False in [compare(suite) for suite in chosen])
    except SuiteError as error:
        print(f"client_suites: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
