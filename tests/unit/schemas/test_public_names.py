"""The public names of ``headrace.schemas``, and what its import loads."""

from __future__ import annotations

import subprocess
import sys

import headrace.schemas

#: Names of the contract: other teams' programs import them.
CONTRACT = (
    "AvroDeserializer",
    "AvroSerializer",
    "JsonDeserializer",
    "JsonSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "SchemaRegistry",
)


def test_every_public_name_is_there_and_documented() -> None:
    assert set(CONTRACT) <= set(headrace.schemas.__all__)
    assert set(headrace.schemas.__all__) <= set(dir(headrace.schemas))
    for name in headrace.schemas.__all__:
        assert (getattr(headrace.schemas, name).__doc__ or "").strip(), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(headrace.schemas, "AvroSerialiser")


def test_avro_loads_neither_grpc_nor_protobuf_nor_optional_packages() -> None:
    program = (
        "import sys\n"
        "from headrace.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry\n"
        "SchemaRegistry('http://127.0.0.1:1')\n"
        "names = ('grpc', 'google.protobuf', 'pyarrow', 'pydantic', 'jsonschema_rs', 'fastavro')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
