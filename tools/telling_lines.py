"""Print the lines that explain failed CI steps, from their logs.

    tools/telling_lines.py build/ci/sim build/ci/kafka       of build/ci/sim.log and build/ci/kafka.log

Usually the lines that explain a failure are at the end of a log; progress, empty lines and durations are left out.
Errors may occur earlier in a log, such as a compiler error before the output of other files. If there are errors
earlier in a log, a third of the lines that are printed for the log are these earlier errors. All failed steps share
about 80 lines, so that the lines fit at the end of CI's output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

LINES_OF_ALL = 80
LINES_OF_ONE = 40
COLUMNS = 240

_NOISE = re.compile(
    r"""
    \s*$                                                 # nothing
    | [.sxXEFR]+\ *(\[\ *\d+%\])?$                       # pytest's dots
    | \S+\.py\ [.sxXEFR]+\ +\[\ *\d+%\]$                 # and with a file's name
    | \d+\.\d+s\ (call|setup|teardown)\                  # how long what took
    | [=\ ]*slowest\ \d+\ durations | \(\d+\ durations
    | -+\ (generated|coverage) | plugins:\ | (rootdir|configfile|testpaths|platform)\b
    | [=_-]+$                                            # rules
    | sim:\ \d+\ of\ \d+\ schedules,\ 0\ violations        # the simulator's progress
    | \ +[\w-]+\ +\d+\ \ .*\ issue\ \d+\ \                  # and the mutants that it killed, as they should be
    | (real|user|sys)\t
    """,
    re.VERBOSE,
)
_TELLS = re.compile(
    r"\bFAILED\b|^FAILED|^ERROR\b|^E  |\b\w*(Error|Exception|Violation)\b|\berror:|^Traceback|\bSURVIVED\b"
    r"|\bTIMED OUT\b|\bFLAKY\b|\bfatal\b|\bviolat|\bnot found\b|Segmentation fault|\bKilled\b",
)


def telling(text: str, most: int = LINES_OF_ONE) -> list[str]:
    """Select at most ``most`` lines of a log, in order; ``...`` marks omitted lines."""
    # Drop escape sequences, and text that a progress bar overwrites.
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.rstrip("\n").split("\r")[-1]) for line in text.split("\n")]
    kept = [(at, line) for at, line in enumerate(lines) if not _NOISE.match(line)]
    early = [(at, line) for at, line in kept[:-most] if _TELLS.search(line)]
    if early:
        early = early[-(most // 3) :]
        kept = early + kept[-(most - len(early) - 1) :]  # one line less, because the line with the dots needs a line
    else:
        kept = kept[-most:]
    shown: list[str] = []
    for number, (_, line) in enumerate(kept):
        if number == len(early) and early:
            shown.append("...")
        shown.append(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 4]} ...")
    return shown


def report(logs: Sequence[Path]) -> list[str]:
    """Select the explaining lines of ``logs``, each with the name of its CI step."""
    most = min(LINES_OF_ONE, max(10, LINES_OF_ALL // max(1, len(logs))))
    said: list[str] = []
    for log in logs:
        said.append(f"ci: === output of the failed step {log.stem} ({log}):")
        lines = telling(log.read_text(errors="replace"), most) if log.exists() else ["(there is no such log)"]
        said += [f"ci: {log.stem} | {line}" for line in lines or ["nothing"]]
    return said


if __name__ == "__main__":
    print(*report([Path(f"{name}.log") for name in sys.argv[1:]]), sep="\n")
