"""Requests to the kernel by netlink. Layouts: linux/netlink.h."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

DUMP = 0x300
"""The flag that asks for all entries, not for one."""
_REQUEST = 0x001
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_NUMBER = struct.Struct("=i")
_BYTES = 1 << 16


def ask(protocol: int, kind: int, flags: int, body: bytes) -> Iterator[bytes]:
    """The bodies of the kernel's answers to a request of this protocol; raises OSError."""
    header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.send(header + body)
        while True:
            data = kernel.recv(_BYTES)
            while data:
                length, answer = _HEADER.unpack_from(data)[:2]
                message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    (number,) = _NUMBER.unpack_from(message)
                    raise OSError(-number, os.strerror(-number))
                yield message
            if not flags & DUMP:
                return
