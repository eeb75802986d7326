"""The doctor: facts of a machine, checks of them, and one report with a remedy for each fault.

| to add | edit |
| --- | --- |
| a check for every engine | `core/doctor/checks.py`: a generator, and its place in `make_checkup` |
| a check for one engine | `engines/KIND/doctor`: a generator, and its place in `checkup` |
| a check of the daemon, the page or the gateway | `cli/doctor/own_machine.py` |
| a fact that checks read | a field of `core/doctor/facts.py`, gathered in `cli/doctor/facts.py` |

Checks are pure: a test gives them facts, and no machine. FAIL stops the engine or loses requests,
WARN costs speed or causes trouble later; both carry the command or the key that fixes it.
"""
