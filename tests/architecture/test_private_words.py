"""tools/private_words.py: which words it counts in which files, and that it fails if a count is above its limit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import private_words
import pytest

FIRST, SECOND = list(private_words.WORDS)[:2]

#: For each private word, a text that uses the word.
USES = {
    "nobody": "nobody reads it",
    "somebody": "Somebody must",
    "anybody": "anybody may",
    "everybody": "for everybody",
    "anew": "compiled anew",
    "whoever": "whoever asks",
    "whatever": "whatever it is",
    "in vain": "tried in vain",
    "for good": "gone for good",
    "is told": "readers are rarely told",
    "lets go of": "lets it go of the shard",
    "hence": "hence the name",
    "lest": "lest it grows",
    "makes its way": "makes its way to the leader",
    "does without": "done without",
    "patience": "its patience ends",
    "who": "and who waits is late",
}


def found(directory: Path, name: str, text: str) -> list[tuple[int, str]]:
    """The line and the private word of each use in a file that contains ``text``."""
    path = directory / name
    path.write_text(text)
    return [(line, word) for line, word, _ in private_words.uses(path)]


def test_every_word_is_found_in_a_page(tmp_path: Path) -> None:
    assert set(USES) == set(private_words.WORDS)
    for word, use in USES.items():
        assert {each for _, each in found(tmp_path, "page.md", f"Text.\n\n{use}\n")} == {word}, use


def test_code_is_not_text_and_comments_docstrings_and_strings_are(tmp_path: Path) -> None:
    code = '''"""Nobody."""

nobody = NOBODY  # the constant NOBODY
somebody("in vain")
# gone for
# good
def anew(): return whatever
'''
    assert found(tmp_path, "code.py", code) == [(1, "nobody"), (4, "in vain"), (5, "for good")]


@pytest.mark.parametrize(
    "text",
    [
        "the leader, who waits",
        "who waits?",
        "are told apart",
        "the greatest",
        "does so without it",
        "a name of NOBODY",
        "kafka.nobody",
    ],
)
def test_other_uses_are_left_alone(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, "page.md", text) == []


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two private words in docs and one in core. Other files, and files that git ignores, do not
    count."""
    for name, text in {
        "docs/page.md": "Nobody, in vain.\n",
        "docs/glossary.md": "nobody\n",
        "core/src/code.py": "x = 1  # anew\n",
        "core/src/x_pb2.py": "# anew\n",
        "core/src/data.csv": "anew\n",
        ".gitignore": "ignored.md\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, "commit", "-qm", "all"], cwd=tmp_path, check=True)
    (tmp_path / "docs" / "ignored.md").write_text(f"{FIRST}\n")
    monkeypatch.setattr(private_words, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("limit", "code"), [(2, 0), (1, 1)])
def test_more_uses_than_the_limit_of_an_area_fail(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: int, code: int
) -> None:
    monkeypatch.setattr(private_words, "LIMITS", {"core": 1, "docs": limit, "other": 0})
    assert private_words.main([]) == code
    shown = capsys.readouterr().out.splitlines()
    assert [line[:33] for line in shown[-1:]] == ["docs: 2 private words, at most 1;"] * code
    assert len(shown) == (len(private_words.WORDS) + 3) * code


def test_the_words_of_changed_lines_are_named_also_in_files_that_git_does_not_know(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newcomer's check passed before the commit of a new file, and failed in the next task."""
    monkeypatch.setattr(private_words, "LIMITS", {"core": 1, "docs": 2, "other": 0})
    with (repository / "docs" / "page.md").open("a") as page:
        page.write(f"Plain.\n{FIRST}.\n")
    (repository / "docs" / "new.md").write_text(f"Plain.\n{SECOND}.\n")
    assert private_words.main([]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-3:] == [
        "docs: 4 private words, at most 2; list them: tools/private_words.py docs",
        f"new: docs/new.md:2: {SECOND}: write {private_words.WORDS[SECOND][1]}",
        f"new: docs/page.md:3: {FIRST}: write {private_words.WORDS[FIRST][1]}",
    ]


def test_the_table_is_shown_on_request(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private_words.main(["-v"])
    assert any(line.startswith("all ") for line in capsys.readouterr().out.splitlines())


def test_uses_below_a_path_are_listed_with_their_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert private_words.main(["docs"]) == 0
    assert [line.partition(": ...")[0] for line in capsys.readouterr().out.splitlines()] == [
        "docs/page.md:1: nobody",
        "docs/page.md:1: in vain",
    ]


def test_limits_are_lowered_to_the_counts_and_never_raised(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = repository / "program.py"
    program.write_text('LIMITS = {\n    "core": 0,\n    "docs": 9,\n}\n')
    monkeypatch.setattr(private_words, "LIMITS", {"core": 0, "docs": 9})
    monkeypatch.setattr(private_words, "__file__", str(program))
    assert private_words.main(["--lower"]) == 0
    assert program.read_text() == 'LIMITS = {\n    "core": 0,\n    "docs": 2,\n}\n'
