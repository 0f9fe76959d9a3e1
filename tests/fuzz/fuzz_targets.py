"""Every target, by name."""

from __future__ import annotations

from tests.fuzz import (
    fuzz_change_events,
    fuzz_files,
    fuzz_handlers,
    fuzz_kafka,
    fuzz_logs,
    fuzz_records,
    fuzz_schema_columns,
    fuzz_schemas,
    fuzz_services,
)

TARGETS = {
    target.name: target
    for module in (
        fuzz_records,
        fuzz_files,
        fuzz_logs,
        fuzz_services,
        fuzz_handlers,
        fuzz_kafka,
        fuzz_schemas,
        fuzz_schema_columns,
        fuzz_change_events,
    )
    for target in module.TARGETS
}
