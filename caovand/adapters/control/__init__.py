"""The daemon's sockets: ZeroMQ for root and the control group, plain lines for everybody else.

For the group, `control` takes every verb and `events` publishes notices; `status` takes the
harmless verbs from anybody, `page` the read-only ones from the page, `gateway` the requests and
reports of the gateway; page and gateway run as the daemon's own user. The modes of the socket files
decide who may connect; `door` limits what a connection may use.
"""

from caovand.adapters.admission.door import CannotBind
from caovand.adapters.control.sockets import Control

__all__ = ["CannotBind", "Control"]
