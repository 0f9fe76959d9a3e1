"""Generate code from the protos, check that it is up to date, and maintain the compatibility baseline.

proto_tool.py generate           new code from the .proto files; compatible additions go into protos/baseline.binpb
proto_tool.py check              fail for outdated code, a broken baseline, or additions missing in it
proto_tool.py accept-breaking    a new baseline with breaking changes (before 1.0 only; note them in CHANGELOG.md)

The baseline is a FileDescriptorSet, as protoc writes it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
import proto_compat
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "protos" / "src"
BASELINE = ROOT / "protos" / "baseline.binpb"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def proto_files() -> list[Path]:
    return sorted(SOURCES.rglob("*.proto"))


def run_protoc(*arguments: str) -> None:
    """Run the bundled protoc on all .proto files. If protoc fails, protoc prints the reason, and this tool exits."""
    names = [str(path.relative_to(SOURCES)) for path in proto_files()]
    code = protoc.main(["protoc", f"-I{SOURCES}", f"-I{WELL_KNOWN}", *arguments, *names])
    if code:
        raise SystemExit(code)


def generate_into(directory: Path) -> list[Path]:
    """Generate messages, stubs and type hints; returns their paths, relative to ``directory``."""
    run_protoc(f"--python_out={directory}", f"--pyi_out={directory}", f"--grpc_python_out={directory}")
    return sorted(path.relative_to(directory) for path in directory.rglob("*_pb2*.py*") if path.suffix != ".pyc")


def descriptors() -> FileDescriptorSet:
    """What the .proto files declare now."""
    with tempfile.NamedTemporaryFile(suffix=".binpb") as file:
        run_protoc(f"--descriptor_set_out={file.name}")
        return FileDescriptorSet.FromString(Path(file.name).read_bytes())


def load_baseline() -> FileDescriptorSet:
    return FileDescriptorSet.FromString(BASELINE.read_bytes())


def save_baseline(files: FileDescriptorSet) -> None:
    BASELINE.write_bytes(files.SerializeToString(deterministic=True))


def stale_files() -> list[str]:
    """The generated files that are missing, outdated, or left over without a .proto file."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        generated = generate_into(fresh)
        committed = sorted(p.relative_to(SOURCES) for p in SOURCES.rglob("*_pb2*.py*") if p.suffix != ".pyc")
        wrong = [f"{path}: no .proto file generates it" for path in committed if path not in generated]
        for path in generated:
            if path not in committed:
                wrong.append(f"{path}: missing")
            elif (fresh / path).read_bytes() != (SOURCES / path).read_bytes():
                wrong.append(f"{path}: differs from the code that its .proto file generates")
        return wrong


def problems() -> list[str]:
    found = [f"{line}; run make proto" for line in stale_files()]
    now, baseline = descriptors(), load_baseline()
    broken = proto_compat.breaking_changes(baseline, now)
    found += [f"breaking change: {line}" for line in broken]
    if not broken and proto_compat.breaking_changes(now, baseline):
        found.append(f"protos/{BASELINE.name} lacks additions to the .proto files; run make proto")
    return found


def generate() -> list[str]:
    """Write the generated code, and extend the baseline unless the .proto files break it; returns the breaking
    changes."""
    generate_into(SOURCES)
    now = descriptors()
    broken = proto_compat.breaking_changes(load_baseline(), now) if BASELINE.exists() else []
    if not broken:
        save_baseline(now)
    return [f"breaking change (the baseline is unchanged): {line}" for line in broken]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["generate"]:
            found = generate()
        case ["check"]:
            found = problems()
        case ["accept-breaking"]:
            found = []
            save_baseline(descriptors())
        case _:
            print(__doc__)
            return 2
    for line in found:
        print(f"protos: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
