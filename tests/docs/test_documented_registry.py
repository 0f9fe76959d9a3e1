"""Runs the blocks of the registry's page, and then the program on the page about schemas, against one cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace_tools.local import ports
from tests.docs import documented_pages as pages
from tests.docs.documented_site import Site

pytestmark = pytest.mark.timeout(480)


def test_the_page_of_the_registry_and_the_program_with_schemas(tmp_path: Path) -> None:
    broker, registry = map(str, ports.pick(2))
    site = Site(tmp_path, f"127.0.0.1:{broker}")

    def here(text: str) -> str:
        return (
            text.replace("127.0.0.1:9095", f"127.0.0.1:{broker}")
            .replace("127.0.0.1:8081", f"127.0.0.1:{registry}")
            .replace("up --data ./cluster", f"up --data ./cluster --port {broker} --registry-port {registry}")
        )

    blocks = [each for each in pages.blocks("docs/registry.md") if not each.not_run]
    assert [each.language for each in blocks] == ["sh", "sh", "sh", "sh"]
    programs = [each for each in pages.blocks("docs/sdk/schemas.md") if each.language == "python" and not each.not_run]
    assert len(programs) == 1
    (tmp_path / "program.py").write_text(here(programs[0].text).replace('"orders"', '"orders-of-the-program"'))
    script = f"export HEADRACE_SCHEMA_REGISTRY_URL=http://127.0.0.1:{registry}\n"
    script += "\n".join(here(each.text) for each in blocks)
    try:
        output = site.bash(f"{script}\npython -W error program.py")
    finally:
        site.bash("headrace down --data ./cluster --delete")
    assert re.search(r"^orders-value +1 +1 +AVRO$", output, re.MULTILINE)
    assert "incompatible with orders-value (BACKWARD):\n  READER_FIELD_MISSING_DEFAULT_VALUE" in output
    assert "a producer must not use this schema" in output
    assert '+      "default": 0' in output
    assert "orders-value version 2 has the schema" in output
    assert output.endswith("{'id': 1, 'customer': 'c-7', 'note': None}\n")
