"""What can go wrong in the source beyond the client's own errors."""

from __future__ import annotations

from headrace_core.errors import ClientError


class DataLossError(ClientError):
    """Records that the query should have read are gone, and ``failOnDataLoss`` is true."""

    code = "DATA_LOSS"


class JavaNotFoundError(ClientError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "JAVA_NOT_FOUND"


class ExecutorPackageError(ClientError, ImportError):
    """A Spark worker runs a Python that lacks this package, or another version of it."""

    code = "EXECUTOR_PACKAGE_MISSING"


_LOST = (
    "Records may have been lost because they are no longer in the log: they aged out, were deleted, or their topic was "
    "deleted before all of it was read."
)
FAIL_ON_DATA_LOSS_TRUE = f'{_LOST} To go on without them, set the source option "failOnDataLoss" to "false".'
FAIL_ON_DATA_LOSS_FALSE = f'{_LOST} To have the query fail instead, set the source option "failOnDataLoss" to "true".'
