"""Import rules between packages: import-linter's contracts, and the modules that an import loads at run time.
import-linter cannot see these modules."""

from __future__ import annotations

import ast
import graphlib
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("protos", "core", "kafka-protocol", "services", "clients", "pipelines")

#: Packages that may use protobuf and gRPC. All other packages use Headrace's own types.
EDGE = re.compile(
    r"""
      core/src/headrace_core/(rpc|membership)/.*
    | core/src/headrace_core/item_errors\.py             # errors as messages, for rpc and for the gates of listeners
    | core/src/headrace_core/security/(rules|shapes|tls)\.py   # gates judge requests; credentials are gRPC's
    | core/src/headrace_core/node/(sasl_sessions|security)\.py  # the service Authentication; a node's credentials
    | services/\w+/src/\w+/(handlers|transport)/.*
    | services/\w+/src/\w+/(app|\w+_link)\.py           # the composition root registers servicers; links are transports
    | kafka-protocol/src/headrace_kafka/(?!wire/).*   # it translates, but for Kafka's bytes
    | services/broker/src/headrace_broker/partition/(follower\w*|matching|push_stream)\.py   # messages are data
    | services/broker/src/headrace_broker/replication/follower_\w+\.py   # from broker to broker
    | services/broker/src/headrace_broker/kafka/streams\.py   # results of a fetch are messages
    | services/broker/src/headrace_broker/tracing\.py    # trace contexts in pushes
    | services/broker/src/headrace_broker/verifier\.py    # the calls to coordinators of transactions
    | clients/python/src/headrace/engine/.*
    | clients/python/src/headrace/admin/(acls|calls|cluster|configs|groups|log_dirs)\.py
    | clients/python/src/headrace/admin/(quotas|replicas|tokens|transactions|users)\.py
    | clients/python/src/headrace/producer/(sender|link|identity|transactional)\.py   # the calls of a producer
    | clients/python/src/headrace/(consumer|fetch)/(\w*fetch\w*|calls|offsets|\w*session\w*|stream\w*)\.py
    | clients/python/src/headrace/consumer/missing_topics\.py
    | clients/python/src/headrace/group/(commits|membership)\.py
    | clients/python/src/headrace/schemas/protobuf\w*\.py   # serializers of a program's own Protobuf messages
    | clients/tools/src/headrace_tools/local/health\.py
    """,
    re.VERBOSE,
)
WIRE = {"grpc", "google", "headrace_protos", "grpc_health", "grpc_reflection"}


def _imports(path: Path) -> set[str]:
    """The top-level names of the packages that a file imports, without its own package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_edge_sees_protobuf_and_grpc() -> None:
    inside = [
        f"{path.relative_to(ROOT)} imports {', '.join(sorted(seen))}"
        for room in OURS
        for path in sorted((ROOT / room).rglob("src/**/*.py"))
        if "headrace_protos" not in path.parts
        if (seen := _imports(path) & WIRE) and not EDGE.fullmatch(str(path.relative_to(ROOT)))
    ]
    assert inside == [], "translate at the edge, or name the file among the edges in this test and say why"


#: Package -> the Headrace packages that it may import. The rules of some services were written before the services
#: existed.
_FORMATS = {"headrace_protos", "headrace_core"}
MAY_IMPORT = {
    "headrace_protos": set(),
    "headrace_core": {"headrace_protos"},
    "headrace_controller": _FORMATS,
    "headrace_kafka": _FORMATS,
    "headrace_broker": _FORMATS | {"headrace_kafka"},
    "headrace_coordinator": _FORMATS,
    "headrace": _FORMATS,
    "headrace_tools": _FORMATS | {"headrace"},
    "headrace_spark": {"headrace_core", "headrace"},
    "headrace_pipelines": {"headrace_core", "headrace", "headrace_tools", "headrace_spark"},
    "headrace_registry": _FORMATS | {"headrace"},
    "headrace_console": _FORMATS | {"headrace", "headrace_tools"},
}


def test_no_arrow_between_the_distributions_closes_a_circle() -> None:
    """The contract `circles` says the same of the modules within each distribution."""
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # raises CycleError


def _packages() -> set[str]:
    """Every Headrace package that has a folder."""
    return {path.parent.name for room in OURS for path in (ROOT / room).glob("**/src/headrace*/__init__.py")}


def test_the_contracts_cover_every_package_that_exists() -> None:
    packages = _packages()
    assert packages >= {"headrace", "headrace_core", "headrace_broker"}
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(linter["root_packages"]) == packages
    forbidden: set[tuple[str, str]] = set()
    for contract in linter["contracts"]:
        if contract["type"] == "acyclic_siblings":
            assert set(contract["ancestors"]) == packages - {"headrace_protos"}, "the protos are generated"
        elif contract["type"] == "independence":
            forbidden |= set(itertools.permutations(contract["modules"], 2))
        elif packages >= set(contract["source_modules"]):
            forbidden |= set(itertools.product(contract["source_modules"], contract["forbidden_modules"]))
    for package, other in itertools.permutations(sorted(packages), 2):
        may = other in MAY_IMPORT[package]
        assert ((package, other) in forbidden) != may, f"{package} may {'' if may else 'not '}import {other}"


def test_import_contracts_are_kept() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "KEPT" in done.stdout


def _loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``statement``."""
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


HEAVY = {"pyarrow", "pandas", "numpy", "pyspark", "typer", "rich", "zstandard", "cramjam", "msgspec", "matplotlib"}
SERVICES = {
    "headrace_broker",
    "headrace_controller",
    "headrace_coordinator",
    "headrace_kafka",
    "headrace_registry",
    "headrace_console",
}


def test_importing_the_sdk_loads_nothing_but_itself() -> None:
    assert not _loaded_by("import headrace") & (HEAVY | SERVICES | {"grpc", "asyncio"})


@pytest.mark.parametrize("names", ["Producer", "Consumer", "Admin", "AsyncProducer, AsyncConsumer, AsyncAdmin"])
def test_clients_load_no_optional_dependency_and_no_service(names: str) -> None:
    assert not _loaded_by(f"from headrace import {names}") & (HEAVY | SERVICES)


@pytest.mark.parametrize(
    "module", ["headrace_spark.source", "headrace_tools.cli.root", "headrace_tools.doctor.diagnosis"]
)
def test_what_is_installed_without_services_needs_none_of_their_libraries(module: str) -> None:
    """Only the services depend on msgspec, so the image of Spark and a plain ``pip install headrace`` do not have
    it."""
    assert not _loaded_by(f"import {module}") & (SERVICES | {"msgspec", "grpc_health", "grpc_reflection"})


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("headrace_spark.sink", {"source", "stream", "tasks", "planning", "offset_reader", "range_reader"}),
        ("headrace_spark.source", {"sink", "sink_task", "exactly_once", "stream", "tracing"}),
        ("headrace_spark.stream", {"sink", "sink_task", "exactly_once", "source"}),
    ],
)
def test_a_worker_of_spark_loads_only_the_modules_of_its_task(module: str, others: set[str]) -> None:
    """Spark starts a process for each step of a query's plan, and each imports the class that Spark unpickles."""
    others |= {"query_metrics", "registry_columns", "sdk_cluster"}
    script = f"import json, sys, {module}\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert not loaded & {f"headrace_spark.{other}" for other in others}
    assert not loaded & {"grpc", "asyncio", "pyarrow", "pandas", "headrace.producer", "headrace.admin"}


def test_a_local_cluster_loads_no_grpc_into_its_owner() -> None:
    assert not _loaded_by("from headrace import LocalCluster") & (HEAVY | SERVICES | {"grpc"})


#: What a plaintext producer and consumer must not load: each costs CPU in every process that opens a client.
NOT_FOR_PLAINTEXT = (
    *HEAVY,
    *SERVICES,
    "headrace.admin",
    "headrace.cluster_models",
    "headrace.consumer.processing",
    "headrace.observing",
    "headrace.schemas",
    "headrace.tracing",
    "headrace_core.log",
    "headrace_core.rpc.server",
    "headrace_core.rpc.session_channel",
    "headrace_core.rpc.streams",  # the servers' side
    "headrace_core.security",  # but for the names of its protocols
    "headrace_protos.v1.admin_pb2",
    "headrace_protos.v1.cluster_pb2",
    "headrace_protos.v1.node_pb2",
    "headrace_protos.v1.security_pb2",
    "headrace_protos.v1.transactions_pb2_grpc",
    "headrace_tools",
    "argparse",
    "importlib.metadata",  # by the package crc32c
    "opentelemetry",
)


def test_a_plaintext_producer_and_consumer_load_only_what_they_use() -> None:
    clients = """
from headrace import Consumer, Producer
Producer(bootstrap_servers="127.0.0.1:1").close()
Consumer(bootstrap_servers="127.0.0.1:1").close()"""
    script = f"import json, sys\n{clients}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout)) - {"headrace_core.security", "headrace_core.security.protocols"}
    assert "headrace.producer.sender" in loaded
    assert [each for each in sorted(loaded) if any(f"{each}.".startswith(f"{no}.") for no in NOT_FOR_PLAINTEXT)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "from headrace import Producer, Consumer, Admin",
        "import headrace_broker.__main__",
        "import headrace_controller.__main__",
        "import headrace_registry.app",
    ],
)
def test_grpc_is_never_imported_before_its_switches_are_set(statement: str) -> None:
    """GRPC_EXPERIMENTS has an effect only if it is set before grpc is imported (headrace_core.rpc.environment)."""
    script = f"""
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc" and "GRPC_EXPERIMENTS" not in os.environ:
            raise SystemExit("grpc was imported before headrace_core.rpc.environment")
sys.meta_path.insert(0, Watch())
{statement}
import headrace_core.rpc
assert "grpc" in sys.modules
"""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=bare)
    assert done.returncode == 0, done.stderr
