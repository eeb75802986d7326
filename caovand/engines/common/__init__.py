"""Parts that several engines share.

| | |
| --- | --- |
| `logs/` | from a line of a log to the cause of a failure; begin with its docstring |
| `healing/` | from a cause to advice, rungs of the ladder, and similar public reports |
| `gguf/` | the memory of a model in GGUF files, its context and its place on the cards |
| `plans.py`, `options.py`, `drafting.py`, `tensors.py` | parts of planners |
| `cards.py`, `processors.py`, `speeds.py` | cards that a build supports; speed of cards and CPUs |
| `histogram_lines.py`, `task_probes.py` | reading metrics, and the requests that prove a start |
"""
