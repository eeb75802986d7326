"""Texts that vLLM prints when it fails, one row per text, in a file for each subject.

`signatures.py` joins the files in the order in which they are tried: `memory`, `cards`,
`arguments`, `model`, `ends`. The first row that matches a line wins, so a row for a specific text
belongs before one for its class, in an earlier file or further up in its own. Rows that engines
share (`engines/common/logs/rows`) are placed by their subject.

`by_phase.py` has the failures that one text means in different phases of a start.
"""
