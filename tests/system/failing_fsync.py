"""A node whose fdatasync fails when a test requests it, inside the C library (see ``fail_fsync.c``).

With the library the product's own calls fail, both those of Python and those of ``_sync.pyx``. The simulated disk
(``headrace_core.testing.power_loss``) sees the failure, and a later power loss removes the data that Linux would have
lost.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("fail_fsync.c")
_CONTROL = "fail-fsync"


def compiled(directory: Path) -> Path | None:
    """Compile the library in ``directory``; return None if there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "fail_fsync.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def prefix(library: Path, journal: Path) -> list[str]:
    """The first words of a node's command line with which the node uses the library."""
    return ["env", f"LD_PRELOAD={library}", f"FAIL_FSYNC_CONTROL={journal / _CONTROL}"]


def fail(journal: Path, text: str, *, nth: int = 1) -> Path:
    """Let the ``nth`` sync of a file whose path contains ``text`` fail once, in the node with this journal. The
    returned file disappears when the failure has happened."""
    assert " " not in text, f"{text!r}: the control file is split at spaces"
    temporary, control = journal / f"{_CONTROL}.tmp", journal / _CONTROL
    temporary.write_text(f"{nth} {text}\n")
    temporary.replace(control)
    return control
