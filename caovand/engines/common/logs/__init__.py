"""From a line of a log to the cause of a failure, for every engine.

The path of a line, here and in each engine's `log/`:

1. `wrapping.py` strips the additions of other tools: docker, journald, a terminal, colours.
2. The engine's `line.py` splits it into process, level, source and message.
3. The engine decides whether it is evidence: an error of its logger, the end of a traceback, or a
   raw line of a library or the kernel (`is_raw` of the tables in `rows/`). A line that may quote a
   client's prompt never is.
4. `signature.first` returns the first row of the engine's table that matches the message. A row has
   a text's pattern, its kind (cause, consequence, ...) and the failure that it means.
5. Lines that match are hits (`hit.py`), in printed order. The engine's `cause.py` drops those that
   the engine survived, and picks the first cause.
6. That is the `Finding`; `healing/` has the advice and the rungs for it.

The daemon follows this path while an engine runs, and `whole_log.py` does for `caovanctl explain`.
If nothing is found in a log as printed, `engines/explaining/` cuts it into pieces that look like
an engine's lines.
"""
