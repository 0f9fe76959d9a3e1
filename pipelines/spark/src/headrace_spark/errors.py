"""Errors of the Spark source and sink, in addition to the client's errors."""

from __future__ import annotations

from headrace_core.errors import ClientError


class DataLossError(ClientError):
    """Records that the query should have read were deleted, and ``failOnDataLoss`` is true."""

    code = "DATA_LOSS"


class SinkSchemaError(ClientError):
    """The DataFrame's columns do not fit the sink: a column is missing, has the wrong type, or occurs twice."""

    code = "INVALID_SINK_SCHEMA"


class SaveModeError(ClientError):
    """A topic can only be appended to, not replaced."""

    code = "INVALID_SAVE_MODE"


class NullTopicError(ClientError):
    """A row has no topic (null), and no option sets one."""

    code = "NULL_TOPIC"


class SinkWriteError(ClientError):
    """A task could not write all its rows.

    The message has the partition, the cause, and the records that were written."""

    code = "SINK_WRITE_FAILED"


class JavaNotFoundError(ClientError):
    """No Java 17 or newer was found."""

    code = "JAVA_NOT_FOUND"


_LOST = (
    "Records may have been lost because they are no longer in the log: they aged out, were deleted, or their topic was "
    "deleted before all of it was read."
)
FAIL_ON_DATA_LOSS_TRUE = f'{_LOST} To continue without them, set the source option "failOnDataLoss" to "false".'
FAIL_ON_DATA_LOSS_FALSE = f'{_LOST} To have the query fail instead, set the source option "failOnDataLoss" to "true".'
