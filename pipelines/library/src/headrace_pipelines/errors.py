"""Errors of the pipelines library, in addition to the client's errors."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import ClientError, InvalidArgumentError


class InvalidExpectationError(InvalidArgumentError):
    """An expectation is invalid, does not fit the frame, or has the same name as another expectation."""

    code = "INVALID_EXPECTATION"


class InvalidColumnsError(InvalidArgumentError):
    """A frame lacks a column that the library needs, or has a column of this name with another meaning or type."""

    code = "INVALID_COLUMNS"


class UnsupportedFieldError(InvalidArgumentError):
    """A field of a schema has a type that JSON cannot represent without a convention."""

    code = "UNSUPPORTED_FIELD"


class SchemaChangeError(InvalidArgumentError):
    """Rows have a column whose type or name does not fit the column of the lake table."""

    code = "SCHEMA_CHANGE"


class TableConflictError(ClientError):
    """A write to a lake table failed repeatedly, because other writers committed first.

    No row of the failed write is visible."""

    code = "TABLE_CONFLICT"


class TableNotFoundError(ClientError):
    """There is no lake table with this name, or no version with this number."""

    code = "TABLE_NOT_FOUND"


class ReplayError(ClientError):
    """Dead letters could not be sent to their source topics again. No record of the failed transaction is visible."""

    code = "REPLAY_FAILED"


class JobFailedError(ClientError):
    """A job under test failed, or did not end or reach its crash point in time."""

    code = "JOB_FAILED"


class QueryFailedError(ClientError):
    """A streaming query of a pipeline ended with an error."""

    code = "QUERY_FAILED"


class AlreadyRunningError(ClientError):
    """Another process runs a pipeline in the same directory."""

    code = "ALREADY_RUNNING"


class PipelineFailedError(ClientError):
    """The output of a pipeline contradicts its input."""

    code = "PIPELINE_FAILED"


class StoppedError(ClientError):
    """SIGTERM ended a pipeline after a batch. ``progress`` describes how far the pipeline came."""

    code = "STOPPED"

    def __init__(self, progress: dict[str, Any]) -> None:
        super().__init__("stopped by SIGTERM after the batch that was running")
        self.progress = progress
