"""Confluent's REST API, over one replica of the registry.

=============== =======================================================================================================
module          content
=============== =======================================================================================================
``handlers``    the paths and their handlers
``requests``    what a request asks for
``answers``     the JSON of answers
``forwarding``  writes: here, or forwarded to the writer
``http``        media types, bodies, errors, limits
=============== =======================================================================================================
"""

from __future__ import annotations

from .handlers import application

__all__ = ["application"]
