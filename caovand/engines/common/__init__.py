"""Parts that several engines share, and that load no engine.

| | |
| --- | --- |
| `logs/` | from a line of a log to the cause of a failure; begin with its docstring |
| `healing/` | from a cause to advice and rungs of the ladder |
| `gguf/` | the memory of a model in GGUF files, its context and its place on the cards |
| `plans.py`, `options.py`, `drafting.py`, `tensors.py`, `usual_requests.py` | parts of planners |
| `chat_formats.py` | how models write thoughts and calls of tools |
| `cards.py`, `processors.py`, `speeds.py` | cards that a build supports; speed of cards and CPUs |
| `histogram_lines.py`, `task_probes.py` | reading metrics, and the requests that prove a start |
| `caches.py`, `torch_environment.py` | folders and variables of engines based on PyTorch |

What one engine contributes to explaining a log of an unknown writer is in its `Log`;
`engines/explaining/` reads it.
"""
