"""The registry's pure state machine: the records of ``_schemas``, the image that they give, and the decisions on it.

=============== =======================================================================================================
module          content
=============== =======================================================================================================
``records``     keys and values of the topic, in Confluent's JSON
``image``       the state that a replica has applied
``cache``       results that are computed once
``parsing``     parsing with a cache, and references
``decisions``   what a write does
``errors``      Confluent's statuses, error codes and messages
=============== =======================================================================================================
"""

from __future__ import annotations

from .decisions import Deciding, Decision, Rules
from .errors import RegistryError
from .image import LATEST, Image, StoredSchema, Version
from .parsing import Parser, Submission
from .records import Config, Mode

__all__ = [
    "LATEST",
    "Config",
    "Deciding",
    "Decision",
    "Image",
    "Mode",
    "Parser",
    "RegistryError",
    "Rules",
    "StoredSchema",
    "Submission",
    "Version",
]
