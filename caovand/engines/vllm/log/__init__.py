"""Turn vLLM's log into phases, values and the cause of a failure.

The path of a line: `json_lines.py` turns a JSON record into lines, `line.py` splits each into
parts, `phases.py` reads progress and values. `signatures.py` decides whether a line is evidence,
and has the table of `rows/` in order. `search.py` collects the hits of a log, without the errors
that vLLM handled (`handled.py`). `component.py` blames a component by their tracebacks;
`vanished.py` detects processes that exited silently. `cause.py` picks the cause among the hits.

`reader.py` is the record of all this for the daemon, `explain.py` reads a whole log for
`caovanctl explain`. `engines/common/logs` describes the path for every engine.
"""
