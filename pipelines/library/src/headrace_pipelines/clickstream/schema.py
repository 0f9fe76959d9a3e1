"""The rows of the clickstream: requests, sessions, counts and conversions, as JSON in their topics.

    clickstream.log            one line of the web server's log for each record
      `-> clickstream.requests     one request for each good line, marked as crawler or view
      |     `-> clickstream.sessions      one visit of one address, with its funnel
      |     `-> clickstream.counts        views of each page, and from each referrer, by hour
      |     `-> clickstream.conversions   a download with a page that the visitor viewed before it
      `-> clickstream.log.dead-letters  each bad line, with the reason and the position (dead_letters.py)

A **tick** is a record without a value. A tick only moves the event time. Spark closes windows and sessions when it has
read a later time, and a log that has ended brings no later time. A tick becomes a request without an address.
"""

from __future__ import annotations

from ..dead_letters import dead_letter_topic

LOG = "clickstream.log"
REQUESTS = "clickstream.requests"
SESSIONS = "clickstream.sessions"
COUNTS = "clickstream.counts"
CONVERSIONS = "clickstream.conversions"
DEAD_LETTERS = dead_letter_topic(LOG)

#: The header of a log record that contains the id of the log line. If a line is sent twice, both records have the same
#: id.
LINE_HEADER = "line"

#: The column ``path`` contains no query string. The column ``agent`` is ``-`` if the log line has no user agent. The
#: column ``address`` is null in a tick (a record that only moves the watermark).
REQUEST = (
    "line STRING, time TIMESTAMP, address STRING, method STRING, path STRING, status INT, bytes BIGINT, "
    "referrer STRING, agent STRING, is_crawler BOOLEAN, is_view BOOLEAN"
)
#: ``funnel`` is the number of steps of the funnel that the visitor took, in order (sessions.FUNNEL).
SESSION = "address STRING, began TIMESTAMP, ended TIMESTAMP, views INT, first_page STRING, last_page STRING, funnel INT"
#: ``kind`` is ``page`` or ``referrer``; ``hour`` is when the hour begins.
COUNT = "hour TIMESTAMP, kind STRING, name STRING, views BIGINT"
#: The visitor viewed ``page`` at most half an hour before the download of ``download``.
CONVERSION = "address STRING, downloaded TIMESTAMP, download STRING, viewed TIMESTAMP, page STRING"
