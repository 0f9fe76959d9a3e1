"""Count the Python frames of one process, phase by phase (bench/budget.py).

Every node of the cluster runs this module from a ``sitecustomize``. The recorder works like the recorder of
tools/trace_record.py, but it counts every call of a Python function, including asyncio and libraries. A resumed
generator or coroutine counts as a call. The recorder sees no compiled code (Cython, gRPC's core, Arrow).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from trace_record import OFF, Recorder, role

#: Numbers of phases: an idle cluster, the first path, the end.
IDLE, FIRST_PATH, DUMP = 1, 2, 255


class FrameRecorder(Recorder):
    """Counts all calls of Python functions; the phase is one byte of a file that all processes map."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._frames: defaultdict[int, Counter[CodeType]] = defaultdict(Counter)
        self._tuples: defaultdict[int, Counter[CodeType]] = defaultdict(Counter)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        phase = self._phase[0]
        if phase == OFF:
            return
        if phase != DUMP:
            code = frame.f_code
            if code.co_filename == "<string>" and frame.f_back is not None:  # named tuples: name the caller
                self._tuples[phase][frame.f_back.f_code] += 1
            else:
                self._frames[phase][code] += 1
        elif self._dumping.acquire(blocking=False):
            self.dump()

    def dump(self) -> None:
        """Write ``PID.json``: the role, and the calls of each function in each phase."""
        sys.setprofile(None)
        command = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()
        phases: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for counts, suffix in ((self._frames, ""), (self._tuples, " (named tuple)")):
            for phase, calls in list(counts.items()):
                for code, count in list(calls.items()):
                    phases[phase][function_name(code) + suffix] += count
        part = self._directory / f"{os.getpid()}.part"
        part.write_text(json.dumps({"role": role(command), "phases": phases}))
        part.rename(part.with_suffix(".json"))


def function_name(code: CodeType) -> str:
    """``package/module.py:function``, without the directories of this machine."""
    path = code.co_filename
    for root in ("/src/", "/site-packages/", f"/python{sys.version_info[0]}.{sys.version_info[1]}/"):
        if root in path:
            return f"{path.rpartition(root)[2]}:{code.co_qualname}"
    return f"{os.path.basename(path)}:{code.co_qualname}"


def record(directory: Path) -> FrameRecorder:
    recorder = FrameRecorder(directory)
    recorder.install()
    return recorder
