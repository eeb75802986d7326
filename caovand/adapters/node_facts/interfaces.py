"""Addresses and network interfaces of this machine (NETLINK_ROUTE), as `ip address` shows them.

Layouts: linux/rtnetlink.h, linux/if_addr.h, net/if.h and linux/ethtool.h. /sys is not used: it
shows the network namespace that it was mounted in, which may not be ours.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from caovand.adapters.network import netlink

LOOPBACK = "127.0.0.1"
FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_GET_ADDRESS = 22
_REMOTE_END, _LOCAL = 1, 2  # the first equals the address itself if a link has no far end
_SCOPE_LINK = 253
_SECONDARY = 0x01  # IPv4's further addresses, IPv6's temporary ones
_GET_MTU = 0x8921  # SIOCGIFMTU
_MTU = struct.Struct("16si20x")
_ETHTOOL = 0x8946  # SIOCETHTOOL
_GET_SETTINGS = 1  # ETHTOOL_GSET, which any user may query
_POINTER = struct.Struct("16sP16x")
_SETTINGS = struct.Struct("=III HBBBBBB IIHBB III")
_SPEED, _SPEED_HIGH = 3, 12
_UNKNOWN = 0xFFFFFFFF


@dataclass(frozen=True)
class Address:
    """One address of an interface; `rank` sorts global before local addresses, and permanent before
    others."""

    interface: str
    family: int
    text: str
    rank: tuple[int, int]

    @property
    def complete(self) -> bool:
        """Whether the address alone reaches us: a link-local IPv6 address lacks the interface."""
        return self.family == socket.AF_INET or self.rank[0] != _SCOPE_LINK


def addresses() -> list[Address]:
    """All addresses; the first of each interface and family is the one to use; raises OSError."""
    return sorted(_answers(), key=lambda address: address.rank)


def mtu(interface: str) -> int:
    """The MTU in bytes; raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _GET_MTU, _MTU.pack(interface.encode(), 0))
    return int(_MTU.unpack(answer)[1])


def speed_mbit(interface: str) -> int:
    """The link's speed in Mbit/s; 0 if it reports none, like most virtual links."""
    settings = ctypes.create_string_buffer(_SETTINGS.size)
    _SETTINGS.pack_into(settings, 0, _GET_SETTINGS, *[0] * 17)
    request = _POINTER.pack(interface.encode(), ctypes.addressof(settings))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _ETHTOOL, request)
    except OSError:
        return 0
    answer = _SETTINGS.unpack(settings.raw)
    speed = answer[_SPEED] | answer[_SPEED_HIGH] << 16
    return 0 if speed == _UNKNOWN else int(speed)


def _answers() -> Iterator[Address]:
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for message in netlink.ask(socket.NETLINK_ROUTE, _GET_ADDRESS, netlink.DUMP, body):
        yield from _address(message)


def _address(message: bytes) -> Iterator[Address]:
    family, _, flags, scope, index = _ADDRESS.unpack_from(message)
    if family not in FAMILIES:
        return
    attributes = dict(_attributes(message[_ADDRESS.size :]))
    packed = attributes.get(_LOCAL) or attributes[_REMOTE_END]
    with suppress(OSError):  # the interface has vanished meanwhile
        name = socket.if_indextoname(index)
        yield Address(name, family, socket.inet_ntop(family, packed), (scope, flags & _SECONDARY))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[_align(length) :]


def _align(length: int) -> int:
    return (length + 3) & ~3


def address_of_host_name() -> str:
    """The address of this host's own name, at which Gloo and others listen without an interface.

    The first that is this machine's; loopback where there is none, as in Gloo. Debian writes
    127.0.1.1 for the name into /etc/hosts.
    """
    try:
        addresses = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return LOOPBACK
    for family, kind, _, _, end in addresses:
        with suppress(OSError), socket.socket(family, kind) as tried:
            tried.bind(end)
            return str(end[0])
    return LOOPBACK
