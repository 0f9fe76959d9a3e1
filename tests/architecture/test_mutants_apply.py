"""Each mutant of tests/mutants applies to the product, so that `make mutants` never fails after half an hour. Remove or
renew a mutant whose lines are gone."""

from __future__ import annotations

from pathlib import Path

import mutants
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """\
def f(a: int) -> int:
    if a < 0:
        return -1
    return max(
        a,
        1,
    )
"""
PATCH = """\
# a user would lose
--- a/x.py
+++ b/x.py
@@ -99 +99 @@
     if {}:
-        return -1
+        return 1
"""


def test_every_mutant_applies_to_the_product_and_is_python() -> None:
    files = sorted(mutants.MUTANTS.glob("*.patch"))
    assert len(files) >= 60
    for file in files:
        mutant = mutants.Mutant.read(file)
        assert "/src/headrace" in mutant.path, f"{file.name} changes {mutant.path}, which is no code of the product"
        source = (ROOT / mutant.path).read_text()
        mutated = mutant.applied(source)
        assert mutated != source
        compile(mutated, file.name, "exec")


def test_a_mutant_whose_lines_are_gone_or_occur_twice_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.patch").write_text(PATCH.format("a < 0"))
    mutant = mutants.Mutant.read(tmp_path / "broken.patch")
    assert mutant.what == "a user would lose"
    assert mutant.applied(SOURCE) == SOURCE.replace("return -1", "return 1")
    for source, times in ((SOURCE.replace("< 0", "<= 0"), 0), (SOURCE * 2, 2)):
        with pytest.raises(mutants.DoesNotApplyError, match=rf"broken.patch: .* occur {times} times in x.py"):
            mutant.applied(source)


def test_a_patch_without_a_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / "silent.patch").write_text(PATCH.format("a < 0").removeprefix("# a user would lose\n"))
    with pytest.raises(mutants.DoesNotApplyError, match=r"silent.patch: must be `# what a user would lose`"):
        mutants.Mutant.read(tmp_path / "silent.patch")


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("        return -1", "        return 1", {3}),
        ("    if a < 0:\n", "    if a > 0:\n", {2}),  # without the lines below the condition
        ("        1,\n", "        2,\n", {4, 5, 6, 7}),  # the whole call
        ("        return -1\n", "", {3}),
        ("        return -1\n", "        a += 1\n        return -1\n", {2, 3}),  # only added: both neighbours
    ],
)
def test_the_lines_that_a_test_must_reach_are_those_of_the_changed_statement(
    old: str, new: str, lines: set[int]
) -> None:
    assert mutants.changed_lines(SOURCE, SOURCE.replace(old, new)) == lines
