"""Texts of failures that several engines print: tables of rows, one row a text.

An engine's own table (`SIGNATURES` in its `log/signatures.py`) consists of these and of its own
rows. **Order matters**: the first row that matches a line wins, so a specific text comes before its
class. Each table goes from the certain to the vague:

1. `host` (with `system`): what the machine denies, whatever the engine. vLLM has its own rows for
   memory before them.
2. Exact texts of libraries: `python` (with `runtime`) and `toolchain`; for llama.cpp and Ollama
   `ggml`, `building` and `exits`.
3. The engine's own rows, by subject; among those about the card, `kernel`. `cuda` has no rows, but
   patterns for these.
4. Downloads: `network`, `python.HUB`.
5. What any program might print: `ggml_families`, `python.ANY_PROGRAM`.
6. `raised`, asked only if no row matches: the failure by the code that raised an exception.

Order counts within one line. Between lines, the kind of a row and `cause.py` decide.
"""
