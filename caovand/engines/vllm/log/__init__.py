"""From vLLM's log to phases, figures and the cause of a failure.

The path of a line: `json_lines.py` converts a JSON record to lines, `line.py` splits each into
parts, `phases.py` reads progress and figures. `signatures.py` decides whether it is evidence, and
joins the tables in `rows/` in order. `search.py` collects the hits of a log, without the errors
that vLLM handled (`handled.py`). `component.py` finds the component to blame in their tracebacks,
`vanished.py` finds processes that vanished silently. `cause.py` picks the cause among the hits.

`reader.py` is the record of all this for the daemon, `explain.py` reads a complete log for
`caovanctl explain`. `engines/common/logs` describes the path for every engine.
"""
