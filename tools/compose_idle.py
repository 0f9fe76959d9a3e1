"""Measure the idle cost of the containers of compose.yaml: ``tools/compose_idle.py [SECONDS]``, after `up --wait`.

For each running container of the project (COMPOSE_PROJECT_NAME, or headrace) the tool sums the PSS of its processes
(shared memory counts once). The tool also sums the processor time of the processes over SECONDS (default: 60). The
figures include running health checks, but not the container engine. The measurement needs Linux and root, on the
machine of the container engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def docker(*arguments: str) -> list[str]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def processes(project: str) -> dict[str, set[int]]:
    """A dictionary of container names and the ids of the containers' processes on this machine."""
    names = docker("ps", "--filter", f"label=com.docker.compose.project={project}", "--format", "{{.Names}}")
    return {name: {int(line) for line in docker("top", name, "-eo", "pid")[1:]} for name in sorted(names)}


def pss_bytes(pids: Iterable[int]) -> int:
    """The total PSS of the processes; a process that has ended counts as 0."""
    total = 0
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_s(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        for path in (PROC / str(pid) / "task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


def main(window_s: float) -> int:
    project = os.environ.get("COMPOSE_PROJECT_NAME", "headrace")
    found = processes(project)
    if not found:
        print(f"compose-idle: no container of project {project} runs", file=sys.stderr)
        return 1
    before = {name: cpu_s(pids) for name, pids in found.items()}
    began = time.monotonic()
    time.sleep(window_s)
    seconds = time.monotonic() - began
    used = {name: (cpu_s(pids) - before[name]) / seconds for name, pids in found.items()}
    memory = {name: pss_bytes(pids) for name, pids in found.items()}
    services: dict[str, list[str]] = defaultdict(list)
    for name in found:
        services[name.removeprefix(f"{project}-").rsplit("-", 1)[0]].append(name)
    print(f"compose-idle: {len(found)} containers, {seconds:.0f} s")
    for service, names in [*services.items(), ("all", list(found))]:
        mib, core = sum(memory[name] for name in names) / 2**20, 100 * sum(used[name] for name in names)
        print(f"compose-idle: {service:12} {len(names):2}  {mib:7.1f} MiB PSS  {core:6.2f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
