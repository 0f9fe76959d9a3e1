"""SQL over topics: a shell whose tables are topics.

tokens.py       text -> tokens and statements, with their positions                     (pure)
faults.py       errors that point at a token of the source                              (pure)
statements.py   one dataclass for each kind of statement
parsing.py      tokens -> statements; a SELECT stays text, which Spark parses           (pure)
rewriting.py    AS OF in a SELECT; positions in the rewritten text and in the source    (pure)
catalog.py      the tables, views, functions and continuous queries of a directory
frames.py       a table as a DataFrame: of a batch, or of a stream
writing.py      rows as records: JSON, Avro, text; keys
continuous.py   the continuous queries of a shell
engine.py       runs statements
output.py       results as a table, JSON lines or CSV
shell.py        the prompt: lines up to a semicolon, history, completion
command.py      headrace-pipelines sql
"""
