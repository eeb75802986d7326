"""Explain a log whoever wrote it: parts of `writer.py` and `attribution.py`.

They know every engine, through the registry alone. What one engine contributes is in its `Log`.

| | |
| --- | --- |
| `excerpts.py`, `unretrieved.py` | cut pasted text into pieces like an engine's lines |
| `named.py` | the one engine that a log names |
| `failed_requests.py`, `other_systems.py` | a server that serves on; logs from Windows and macOS |
| `answer.py` | what a finding means to people, with similar public reports |
"""
