"""The daemon's sockets: ZeroMQ for root and the control group, plain lines for everybody else.

`control` takes every verb and `events` publishes notices, for the group; `status` takes the
harmless verbs from anybody, `page` those that only read from the page, `gateway` what that asks and
reports; both run as the daemon's own user. Who may connect is decided by the rights of the socket
files, what a connection may use up by `door`.
"""

from caovand.adapters.admission.door import CannotBind
from caovand.adapters.control.sockets import Control

__all__ = ["CannotBind", "Control"]
