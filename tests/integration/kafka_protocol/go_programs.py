"""Compile the Go programs of tests/integration/kafka_protocol/go into build/go-clients."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integration.interop.kafka_peer import ROOT

SOURCES = Path(__file__).parent / "go"
#: Seconds that a compilation may take, the download of the modules included.
_COMPILE_S = 280
#: Without optimizations and symbols a first compilation takes two thirds of the time.
_FAST = ("-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w")


def go_programs() -> Path:
    """The folder with the programs ``franz``, ``sarama`` and ``secured``. Go compiles only what has changed."""
    programs = ROOT / "build" / "go-clients"
    programs.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "build", *_FAST, "-o", str(programs), "./franz", "./sarama", "./secured"],
        cwd=SOURCES,
        env=os.environ | {"CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=_COMPILE_S,
    )
    assert done.returncode == 0, f"go build: {done.returncode}\n{done.stdout}{done.stderr}"
    return programs
