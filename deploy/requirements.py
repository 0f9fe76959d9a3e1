"""Print the dependencies of an image, without our own distributions: ``requirements.py service``, ``registry``,
``console`` or ``spark``, for pip -r.

The names of the dependencies come from the pyproject files, and their versions from constraints.txt.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

#: Image -> Headrace's distributions in the image, with their extras.
IMAGES = {
    "service": {
        "protos": (),
        "core": ("server", "zstd", "snappy", "otel"),
        "kafka-protocol": (),
        "services/controller": (),
        "services/broker": (),
        "services/coordinator": (),
        "clients/python": ("zstd", "snappy"),
        "clients/tools": (),
    },
    "registry": {
        "services/registry": (),
    },
    "console": {
        "services/console": (),
    },
    "spark": {
        "protos": (),
        "core": ("arrow", "zstd", "snappy", "otel"),
        "clients/python": ("arrow", "zstd", "snappy"),
        "clients/tools": (),
        "pipelines/spark": ("otel",),
        "pipelines/library": ("demo",),
    },
}
#: Dependencies of an extra that no image needs: the demo in containers draws no charts.
LEFT_OUT = {"service": (), "registry": (), "console": (), "spark": ("matplotlib",)}
#: Image -> the image that it extends, whose dependencies it already has.
BASES = {"registry": "service", "console": "service"}


def requirements(image: str, root: Path) -> list[str]:
    """The sorted requirements of ``image``, without Headrace's own distributions and without the requirements of its
    base image."""
    found: set[str] = set()
    left_out = ("headrace", *LEFT_OUT[image])
    for directory, extras in IMAGES[image].items():
        project = tomllib.loads((root / directory / "pyproject.toml").read_text())["project"]
        for wanted in (project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)):
            found.update(each for each in wanted if not re.match(rf"({'|'.join(left_out)})\b", each))
    return sorted(found - set(requirements(BASES[image], root) if image in BASES else ()))


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], Path(__file__).resolve().parent.parent)))
