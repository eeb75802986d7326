"""The address of the default route's interface, as chosen by the kernel."""

from __future__ import annotations

import errno
import ipaddress
import socket

import pytest

from caovand.adapters.network import own_address


class Link:
    """A UDP socket of a machine that has these addresses."""

    def __init__(self, addresses: dict[int, str], family: int) -> None:
        self._own = addresses.get(family)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, _: object) -> None:
        if self._own is None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    def getsockname(self) -> tuple[str, int]:
        assert self._own is not None
        return self._own, 40000


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ({V4: "10.0.0.1", V6: "2001:db8::7"}, "10.0.0.1"),
        ({V6: "2001:db8::7"}, "2001:db8::7"),
        ({}, None),
    ],
)
def test_ipv4_comes_first(
    monkeypatch: pytest.MonkeyPatch, addresses: dict[int, str], found: str | None
) -> None:
    monkeypatch.setattr(socket, "socket", lambda family, _kind: Link(addresses, family))
    assert own_address.of_default_route() == found


def test_here_it_is_an_address_or_there_is_no_route() -> None:
    found = own_address.of_default_route()
    assert found is None or ipaddress.ip_address(found)
