"""The clickstream of a web site: from the lines of its log to visits, top pages, funnels and conversions.

The reading order of the modules of the clickstream pipeline is below. The first four modules have pure functions of
DataFrames, so a test calls them with small frames.

schema.py       the topics, and the columns of their rows
parsing.py      lines to requests; crawlers and views are marked; bad lines get a reason
views.py        views of pages and from referrers by hour, and the top of each hour
sessions.py     visits, and how far each went through the funnel
conversions.py  a stream-stream join: what was viewed before a download
replay.py       sends the log's lines by the log's own clock
job.py          wires source, state, checkpoints and sinks; ``headrace-pipelines run clickstream``
summary.py      the numbers of a run, from its topics
pictures.py     the charts of a run
"""
