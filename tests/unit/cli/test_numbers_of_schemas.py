"""``schemas show`` indents a schema and leaves its numbers as they were registered."""

from __future__ import annotations

from typer.testing import CliRunner

from headrace_tools.cli.root import build
from tests.worlds.registries import fake_registry


def test_the_bounds_and_defaults_of_a_shown_schema_have_all_their_digits() -> None:
    text = '{"maximum":0.1234567890123456789,"default":1.10,"multipleOf":1e-400,"minimum":-0,"enum":[1e9]}'
    with fake_registry() as registry:
        registry.add("orders-value", {"schema": text, "schemaType": "JSON"})
        words = ["schemas", "show", "orders-value", "-r", registry.url]
        shown = CliRunner().invoke(build(words), words)
    assert shown.exit_code == 0, shown.output
    assert text in "".join(shown.stdout.split()), shown.stdout
