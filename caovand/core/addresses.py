"""Parse and classify network addresses, with or without a port."""

from __future__ import annotations

import ipaddress
import re


def is_loopback(host: str) -> bool:
    """Whether this host is a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_host(host: str) -> str:
    """The host as a URL names it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def split_address(listen: str) -> tuple[str, int]:
    """Split ADDRESS:PORT, such as 127.0.0.1:9400 or [::1]:9400; raises ValueError."""
    host, _, port = listen.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host.strip("[]") or not digits or not 0 < int(port) < 65536:
        raise ValueError(f'"{listen}" is not ADDRESS:PORT')
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: object) -> str:
    """ADDRESS:PORT, as `split_address` reads it."""
    return f"{url_host(host)}:{port}"


def is_endpoint(listen: str) -> bool:
    """Whether `split_address` accepts this text."""
    try:
        split_address(listen)
    except ValueError:
        return False
    return True


def is_host(host: str) -> bool:
    """Whether this could be an IP address or a host name."""
    return re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:%_-]*", host) is not None
