"""An engine's processes: started in their own session, watched, and ended with all descendants."""

from caovand.adapters.child.child import CannotSpawn, Child, Launch
from caovand.adapters.child.engines import Engines
from caovand.adapters.child.orphans import end_orphans, orphans, record
from caovand.adapters.child.sweeper import for_people

__all__ = [
    "CannotSpawn",
    "Child",
    "Engines",
    "Launch",
    "end_orphans",
    "for_people",
    "orphans",
    "record",
]
