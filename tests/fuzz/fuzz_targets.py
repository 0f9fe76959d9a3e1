"""Every target, by name."""

from __future__ import annotations

import fuzz_files
import fuzz_handlers
import fuzz_logs
import fuzz_records
import fuzz_services

TARGETS = {
    target.name: target
    for module in (fuzz_records, fuzz_files, fuzz_logs, fuzz_services, fuzz_handlers)
    for target in module.TARGETS
}
