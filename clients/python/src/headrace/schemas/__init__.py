"""Schemas: serializers and deserializers with a schema registry, and the registry's client.

    from headrace.schemas import AvroSerializer, SchemaRegistry

    registry = SchemaRegistry("http://127.0.0.1:8081")
    producer = Producer(value_serializer=AvroSerializer(registry, schema))

Serialized values have Confluent's wire format. Clients of other vendors can read the values that this package writes,
and this package can read the values that those clients write. A public name is imported when it is first used. JSON
Schema's validation needs ``pip install 'headrace[schemas]'``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import wire as wire
    from .any_serde import RegistryDeserializer as RegistryDeserializer
    from .arrow_serde import AvroArrowDeserializer as AvroArrowDeserializer
    from .arrow_serde import AvroArrowSerializer as AvroArrowSerializer
    from .avro_serde import AvroDeserializer as AvroDeserializer
    from .avro_serde import AvroSerializer as AvroSerializer
    from .building import plain as plain
    from .errors import CorruptValueError as CorruptValueError
    from .errors import IncompatibleSchemaError as IncompatibleSchemaError
    from .errors import InvalidSchemaError as InvalidSchemaError
    from .errors import InvalidValueError as InvalidValueError
    from .errors import RegistryRefusedError as RegistryRefusedError
    from .errors import RegistryUnavailableError as RegistryUnavailableError
    from .errors import SchemaError as SchemaError
    from .errors import SchemaNotFoundError as SchemaNotFoundError
    from .errors import UnknownSchemaIdError as UnknownSchemaIdError
    from .errors import WrongMagicByteError as WrongMagicByteError
    from .json_serde import JsonDeserializer as JsonDeserializer
    from .json_serde import JsonSerializer as JsonSerializer
    from .models import Compatibility as Compatibility
    from .models import Mode as Mode
    from .models import Reference as Reference
    from .models import RegisteredSchema as RegisteredSchema
    from .models import ResolvedSchema as ResolvedSchema
    from .models import Schema as Schema
    from .models import SchemaType as SchemaType
    from .protobuf_serde import ProtobufDeserializer as ProtobufDeserializer
    from .protobuf_serde import ProtobufSerializer as ProtobufSerializer
    from .registry import SchemaRegistry as SchemaRegistry

#: Maps each public name to the module that defines it.
_HOMES = {
    "AvroArrowDeserializer": ".arrow_serde",
    "AvroArrowSerializer": ".arrow_serde",
    "AvroDeserializer": ".avro_serde",
    "AvroSerializer": ".avro_serde",
    "Compatibility": ".models",
    "CorruptValueError": ".errors",
    "IncompatibleSchemaError": ".errors",
    "InvalidSchemaError": ".errors",
    "InvalidValueError": ".errors",
    "JsonDeserializer": ".json_serde",
    "JsonSerializer": ".json_serde",
    "Mode": ".models",
    "ProtobufDeserializer": ".protobuf_serde",
    "ProtobufSerializer": ".protobuf_serde",
    "Reference": ".models",
    "RegisteredSchema": ".models",
    "RegistryDeserializer": ".any_serde",
    "RegistryRefusedError": ".errors",
    "RegistryUnavailableError": ".errors",
    "ResolvedSchema": ".models",
    "Schema": ".models",
    "SchemaError": ".errors",
    "SchemaNotFoundError": ".errors",
    "SchemaRegistry": ".registry",
    "SchemaType": ".models",
    "UnknownSchemaIdError": ".errors",
    "WrongMagicByteError": ".errors",
    "plain": ".building",
}

#: Public modules.
_MODULES = ("wire",)


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__all__":
        return sorted({*_HOMES, *_MODULES})
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
