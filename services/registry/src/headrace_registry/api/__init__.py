"""Confluent's REST API, over one replica of the registry.

=============== =======================================================================================================
module          content
=============== =======================================================================================================
``handlers``    the paths and their handlers
``requests``    what a request asks for
``answers``     the JSON of answers
``forwarding``  writes: here, or forwarded to the writer
``connections`` the number of connections, handshakes included, and the time until a first request
``http``        media types, bodies, errors, limits
=============== =======================================================================================================
"""

from __future__ import annotations

from .handlers import CONNECTIONS, application

__all__ = ["CONNECTIONS", "application"]
