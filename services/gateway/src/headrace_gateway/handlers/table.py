"""The handler of each request type. A type that is not in the table is not advertised."""

from __future__ import annotations

from ..call import Handler
from ..wire.apis import Api

HANDLERS: dict[Api, Handler] = {}
