"""Compiles every .pyx file of the package; all other build settings are in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

os.chdir(Path(__file__).parent)

setup(
    ext_modules=cythonize(
        [
            Extension(
                ".".join(source.relative_to("src").with_suffix("").parts),
                [str(source)],
                extra_compile_args=["-O3", "-fno-strict-aliasing"],
            )
            for source in sorted(Path("src").rglob("*.pyx"))
        ],
        compiler_directives={"language_level": 3},
        include_path=["src"],
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
