"""Errors of source and sink beyond the client's."""

from __future__ import annotations

from headrace_core.errors import ClientError


class DataLossError(ClientError):
    """Records that the query should have read were deleted, and ``failOnDataLoss`` is true."""

    code = "DATA_LOSS"


class SinkSchemaError(ClientError):
    """The frame's columns are not those of the sink."""

    code = "INVALID_SINK_SCHEMA"


class SaveModeError(ClientError):
    """A topic can only be appended to, not replaced."""

    code = "INVALID_SAVE_MODE"


class NullTopicError(ClientError):
    """A row names no topic."""

    code = "NULL_TOPIC"


class SinkWriteError(ClientError):
    """A task could not write all its rows. The message has the partition, the cause, and what was written."""

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
