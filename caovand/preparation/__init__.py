"""What a plan needs of this machine, for the daemon and for caovanctl alike.

| | |
| --- | --- |
| `plan_request.py`, `model.py` | what a plan depends on, and its model |
| `memories.py` | the state files of a slot: where they are, and what they may contain |
| `confinement.py` | the paths that an engine may read and write |
"""
