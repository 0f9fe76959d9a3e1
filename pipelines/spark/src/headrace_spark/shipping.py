"""Pickle readers so that a Spark worker without this package reports clearly what is missing.

Spark pickles a reader by reference; a worker without the package then fails with "No module named 'headrace_spark'" at
the end of a long trace. To explain a missing package, a reader is pickled as bytes inside a call of ``_open``. The
function ``_open`` is pickled by value, as cloudpickle does for functions of ``__main__``. Because ``_open`` is pickled
by value, the function runs on any Python, looks for the package, and explains what is missing.

``settle`` tunes the worker's garbage collector.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable
from typing import Any

#: Version of this package, which must be the same on driver and workers.
VERSION = "0.1.0"


def _open(module: str, name: str, state: bytes, version: str, driver: str) -> Any:
    """Unpickle the reader or writer in the worker, or explain why unpickling is not possible. The function ``_open`` is
    pickled by value, so it cannot use other names of this module."""
    import importlib
    import pickle
    import sys

    advice = (
        f"This Spark worker runs {sys.executable} (Python {sys.version.split()[0]}), the driver runs {driver}. "
        "Install headrace-spark for the worker's Python, or set PYSPARK_PYTHON (spark.pyspark.python) to an "
        "interpreter that has it, before the session is created; on a cluster, spark.archives can ship a packed "
        "environment."
    )
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The package headrace_spark cannot be imported in a Spark worker: {error}. {advice}"
        ) from None
    theirs = importlib.import_module("headrace_spark").__version__
    if theirs != version:
        raise ImportError(f"The Spark worker has headrace_spark {theirs}, the driver has {version}. {advice}")
    instance = object.__new__(getattr(found, name))
    instance.__dict__.update(pickle.loads(state))
    return instance


_open.__module__ = "__main__"


def ship(instance: object, state: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The result of a reader's ``__reduce__``; ``state`` becomes its ``__dict__``."""
    kind = type(instance)
    return _open, (kind.__module__, kind.__qualname__, pickle.dumps(state), VERSION, sys.executable)


#: Number of tasks after which a worker no longer freezes objects.
WARM_AFTER = 3

_tasks_done = 0


def settle() -> None:
    """Exempt all current objects from garbage collection (``gc.freeze``) after each of a worker's first tasks.

    Spark's worker runs a full collection after each task. With pandas, pyarrow and grpc loaded, a collection walks
    75,000 objects. After each task of each micro-batch, a full collection takes 20 ms, or 40 to 80 ms if other
    processes use the cores. Imported objects are never garbage, and the collector skips frozen objects. With frozen
    objects a stream of small batches runs a quarter faster (docs/spark-running.md).
    """
    global _tasks_done
    _tasks_done += 1
    if _tasks_done <= WARM_AFTER:
        gc.collect()
        gc.freeze()
