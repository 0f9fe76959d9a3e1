"""Manage the version of all distributions, which is one line of the root pyproject.toml: [tool.headrace] version.

tools/version.py            print it
tools/version.py generate   write it to all other places, after you change that line
tools/version.py check      fail where another version is found (part of `make check`)
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from install import DISTRIBUTIONS

ROOT = Path(__file__).resolve().parent.parent
#: Matches a version of Headrace: a release or a release candidate (PEP 440).
_ANY = r"\d+\.\d+\.\d+(?:rc\d+)?"
#: A dictionary of files, each with a pattern that precedes a version in the file, and the minimum number of matches.
PLACES = {
    **{
        # Pattern of a distribution's own version and of the versions to which it pins the other distributions.
        f"{directory}/pyproject.toml": (r'^version = "|\bheadrace(?:-[a-z]+)?(?:\[[a-z,]+\])?==', 1)
        for directory in DISTRIBUTIONS
    },
    "clients/python/src/headrace/__init__.py": (r'^__version__ = "', 1),
    "pipelines/spark/src/headrace_spark/shipping.py": (r'^VERSION = "', 1),
    "docs/installing.md": (r"\bheadrace\[all\]==", 1),
    "compose.yaml": (r"\bHEADRACE_VERSION:-", 2),
    "tests/compose/stack.py": (r'^    version = "', 1),
}


def version(root: Path = ROOT) -> str:
    """Read the version of all distributions from the root pyproject.toml. Raises ValueError unless the version is a
    release or a release candidate."""
    declared = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["headrace"]["version"]
    if not re.fullmatch(_ANY, declared):
        raise ValueError(f'pyproject.toml: [tool.headrace] version "{declared}" is neither X.Y.Z nor X.Y.ZrcN')
    return str(declared)


def rewritten(root: Path = ROOT) -> dict[Path, str]:
    """A dictionary of the files that have another version than ``version``, and the text that each file should have."""
    wanted, changed = version(root), {}
    for name, (before, at_least) in PLACES.items():
        path = root / name
        text, count = re.subn(rf"({before}){_ANY}", rf"\g<1>{wanted}", path.read_text(), flags=re.MULTILINE)
        if count < at_least:
            raise ValueError(
                f"{name}: {count} versions found, expected {at_least}; correct its pattern in tools/version.py"
            )
        if text != path.read_text():
            changed[path] = text
    return changed


def main() -> int:
    command = sys.argv[1] if len(sys.argv) > 1 else "print"
    if command == "print":
        print(version())
        return 0
    if command not in ("generate", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    stale = rewritten()
    for path, text in stale.items():
        if command == "generate":
            path.write_text(text)
            print(f"version: {path.relative_to(ROOT)}: {version()}")
        else:
            print(f"{path.relative_to(ROOT)}: not version {version()}; run .venv/bin/python tools/version.py generate")
    return 1 if stale and command == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
