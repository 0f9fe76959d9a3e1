"""tools/sentences.py: splitting into sentences, their places, and the draw."""

from __future__ import annotations

import sentences


def test_a_page_gives_its_paragraphs_items_and_cells() -> None:
    page = """\
# A heading is none. Really none

One sentence, of version 0.1,
on two lines. And a [second one](there.md), e.g. This `x.y`. no end

* **An item is one.** It has two,
  of which this is one.

```sh
# A comment of a command is none.
```

| key | A cell may have one. It may have two of them. |
"""
    assert [(each.line, each.text) for each in sentences.of_page("a.md", page)] == [
        (3, "One sentence, of version 0.1, on two lines."),
        (6, "An item is one."),
        (6, "It has two, of which this is one."),
        (13, "A cell may have one."),
        (13, "It may have two of them."),
    ]


def test_code_gives_docstrings_comments_and_messages() -> None:
    code = '''\
"""The first docstring is this.

    This example is not one.
"""
# A comment on two
# lines is one sentence.
x = "A string is not a docstring."  # trailing fragment
def f(name: str) -> None:
    """The function says
    what it does."""
    raise ValueError(f"cannot open {name!r}: it does " "not exist")
'''
    assert [str(each) for each in sentences.of_code("a.py", code)] == [
        "a.py:1  docstring  The first docstring is this.",
        "a.py:5  comment  A comment on two lines is one sentence.",
        "a.py:9  docstring  The function says what it does.",
    ]
    assert [str(each) for each in sentences.of_messages("a.py", code)] == [
        "a.py:11  error  cannot open {name}: it does not exist"
    ]


def test_a_seed_draws_the_same_sentences_a_quarter_of_each_kind() -> None:
    every = [
        sentences.Sentence("a.py", line, kind, f"Sentence {line}.") for kind in sentences.KINDS for line in range(40)
    ]
    drawn = sentences.drawn(every, 100, 20261122)
    assert drawn == sentences.drawn(every[::-1], 100, 20261122) != sentences.drawn(every, 100, 20261123)
    assert [each.kind for each in drawn] == [kind for kind in sentences.KINDS for _ in range(25)]
