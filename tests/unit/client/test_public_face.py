"""The names of `import headrace`, and its cost."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

CONTRACT = [
    "Producer",
    "Consumer",
    "Admin",
    "AsyncProducer",
    "AsyncConsumer",
    "AsyncAdmin",
    "TopicPartition",
    "NewTopic",
    "LocalCluster",
    "Record",
    "RecordMetadata",
]


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_every_promised_name_is_exported_and_documented() -> None:
    for name in headrace.__all__:
        value = getattr(headrace, name)
        assert inspect.isclass(value) or inspect.isfunction(value), name
        assert value.__doc__, name
    assert set(CONTRACT) <= set(headrace.__all__)
    assert headrace.ConsumerRecord is headrace.Record
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="Producr"):
        _ = headrace.Producr


def test_type_checkers_find_each_name_where_the_package_imports_it() -> None:
    stub = ast.parse(Path(headrace.__file__).with_suffix(".pyi").read_text())
    homes = {
        name.asname: "." * statement.level + (statement.module or "")
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert {name: homes.pop(name) for name in headrace._MODULES} == dict.fromkeys(headrace._MODULES, ".")
    assert homes == headrace._HOMES


def test_values_travel_between_processes() -> None:
    for value in (headrace.NewTopic("t"), headrace.GroupMetadata("g"), headrace.BrokerInfo(1, "host", 9092)):
        assert pickle.loads(pickle.dumps(value)) == value


def test_without_the_tools_only_local_cluster_is_missing_and_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['headrace_tools'] = None  # as when it is not installed\n"
        "import headrace\n"
        "from headrace import *\n"
        "assert Producer and 'LocalCluster' not in dir(headrace)\n"
        "try:\n    from headrace import LocalCluster\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headrace[cluster]'" in done.stdout


def test_import_loads_neither_grpc_nor_anything_heavy() -> None:
    loaded = loaded_by("import headrace")
    assert not loaded & {"grpc", "google.protobuf", "asyncio", "pyarrow", "numpy", "typer", "msgspec"}


def test_clients_load_nothing_that_they_do_not_need() -> None:
    loaded = loaded_by("from headrace import Producer, Consumer, Admin\nProducer().close(); Consumer().close()")
    assert "grpc" in loaded
    unwanted = {"pyarrow", "numpy", "typer", "rich", "msgspec", "grpc_health.v1", "grpc_reflection.v1alpha", "pandas"}
    assert not loaded & unwanted
    assert not {name for name in loaded if name.startswith(("headrace_broker", "headrace_controller", "pyspark"))}


@pytest.mark.parametrize("pair", ["Producer", "Consumer", "Admin"])
def test_asyncio_twins_have_the_same_methods(pair: str) -> None:
    blocking, asyncio_twin = getattr(headrace, pair), getattr(headrace, "Async" + pair)
    methods = {name for name in dir(blocking) if not name.startswith("_")}
    assert methods <= {name for name in dir(asyncio_twin) if not name.startswith("_")}
    for name in methods:
        one, other = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(asyncio_twin, name))
        assert set(one.parameters) - {"on_delivery"} == set(other.parameters), name
        assert getattr(blocking, name).__doc__, name
        assert getattr(asyncio_twin, name).__doc__, name


def test_errors_are_the_servers() -> None:
    import headrace_core.errors as core
    from headrace import errors

    assert errors.HeadraceError is core.HeadraceError
    for name, value in vars(core).items():
        if isinstance(value, type) and issubclass(value, core.HeadraceError):
            assert getattr(errors, name) is value
    assert errors.UnknownOutcomeError.code == "OUTCOME_UNKNOWN"
    assert issubclass(errors.UnknownOutcomeError, errors.DeliveryTimeoutError)


def test_values_of_the_administration_are_found_where_they_were() -> None:
    """Pickles of an earlier release name ``headrace.models``."""
    from headrace import cluster_models, models

    names = [
        name
        for name, value in vars(cluster_models).items()
        if getattr(value, "__module__", "") == cluster_models.__name__
    ]
    assert len(names) == 22
    assert all(getattr(models, name) is getattr(cluster_models, name) for name in names)
    assert pickle.loads(b"cheadrace.models\nNewTopic\n.") is cluster_models.NewTopic
    with pytest.raises(AttributeError, match="has no attribute 'NoTopic'"):
        _ = models.NoTopic
