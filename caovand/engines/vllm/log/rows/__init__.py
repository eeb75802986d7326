"""Messages of vLLM's failures, one row per message, in one file per subject.

`signatures.py` joins the files in the order in which they are tried: `memory`, `cards`,
`arguments`, `model`, `ends`. The first matching row wins, so a row for a specific message belongs
before one for its class, in an earlier file or further up in its own. Rows that engines share
(`engines/common/logs/rows`) are inserted with their subject.

`by_phase.py` has the failures that one message means in different phases of a start.
"""
