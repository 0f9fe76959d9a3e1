"""Number of attempts that Spark makes per task. The driver passes the number of attempts to the workers, so that the
workers' error messages can name this number."""

from __future__ import annotations

import os
import re

#: Environment variable of the workers: how many attempts Spark makes for each task, and Spark's master, for instance
#: ``1 local[*]``.
ATTEMPTS = "HEADRACE_SPARK_TASK_ATTEMPTS"
MAX_FAILURES = "spark.task.maxFailures"
_MAX_FAILURES_DEFAULT = "4"

_LOCAL = re.compile(r"local(\[[^],]*(?:,\s*(\d+)\s*)?\])?")


def is_local(master: str) -> bool:
    """Whether the tasks run in the driver's JVM. A master ``local-cluster[...]`` is a cluster, because it starts
    executors."""
    return _LOCAL.fullmatch(master) is not None


def attempts_text(master: str, max_failures: str | None) -> str:
    """The value of the environment variable ATTEMPTS. Local masters ignore spark.task.maxFailures: ``local[N, F]``
    makes F attempts, other local masters make one attempt."""
    local = _LOCAL.fullmatch(master)
    attempts = (local[2] or "1") if local else (max_failures or _MAX_FAILURES_DEFAULT)
    return f"{attempts} {master}"


def retry_text() -> str:
    """A text that says what Spark does with the rows of a failed task. Runs in a worker."""
    attempts, _, master = os.environ.get(ATTEMPTS, "").partition(" ")
    if attempts == "1":
        more = " (a master local[N,F] makes F attempts)" if is_local(master) else f" ({MAX_FAILURES}=1)"
        return f"Spark makes one attempt per task on {master}{more}: the query fails; start it again"
    many = f"; {attempts} attempts on {master}" if attempts else ""
    return f"Spark writes the task's rows again if it tries the task again ({MAX_FAILURES}{many})"
