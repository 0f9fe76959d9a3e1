"""The web console of a cluster. The console reads through the SDK, like any client, and changes the cluster only after
the user has reviewed the change.

app.py          builds, starts and stops the parts of the process
settings.py     the configuration
cluster.py      the clients through which the console reads and changes the cluster
refreshing.py   values that are sampled in the background, with their age
watching.py     the samples of the cluster, and doctor's findings
history.py      samples over time, for the charts (pure)
impact.py       what the loss of a broker means for each partition (pure)
display.py      how bytes, numbers and times are shown (pure)
finding.py      search for records by key, time and offset
tailing.py      live records, as server-sent events
decoding.py     decode keys and values by the schema registry
changes.py      the changes that the console can make, each with its command line
gate.py         checks of every request: Host, origin, size, number; headers of every answer
pages/          one module per subject: what a page shows
templates/      the pages' HTML
static/         style, script, htmx and uPlot (static/vendored.json names their versions)
"""
