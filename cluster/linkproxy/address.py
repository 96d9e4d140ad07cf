"""Addresses as Toxiproxy writes them: ``host:port``, ``[::1]:port``, ``:port`` for all interfaces."""

from __future__ import annotations

import errno
import os
import socket

from cluster.linkproxy.errors import ListenError


def split(address: str) -> tuple[str, int]:
    """Return host (may be empty) and port.

    Raises:
        ValueError: it is not of the form ``host:port``.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError(f"address {address}: missing port in address")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {address}: too many colons in address")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"address {address}: invalid port")
    return host, int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(address: str) -> socket.socket:
    """Return a socket bound to an address; an empty address is a free port on all interfaces.

    Raises:
        ListenError: in the words of the Go server: ``listen tcp 127.0.0.1:80: bind: permission denied``.
    """
    try:
        host, port = split(address) if address else ("", 0)
        family, place = _resolve(host, port)
    except (ValueError, OSError) as error:
        raise ListenError(f"listen tcp: {error}") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
        sock.bind(place)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno or errno.EINVAL).lower()
        raise ListenError(f"listen tcp {address}: bind: {reason}") from error
    return sock


def bound_to(sock: socket.socket) -> str:
    """Return the address that a socket is bound to."""
    host, port = sock.getsockname()[:2]
    return join(host, port)


def same_listen(bound: str, asked: str) -> bool:
    """Tell whether ``asked`` names the address ``bound``, which is already resolved.

    Raises:
        ListenError: ``asked`` cannot be understood.
    """
    if bound == asked:
        return True
    try:
        host, port = split(asked)
        _, place = _resolve(host, port)
    except (ValueError, OSError) as error:
        raise ListenError(f"listen tcp: {error}") from error
    return bound == join(*place)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not host and socket.has_dualstack_ipv6():
        return socket.AF_INET6, ("::", port)
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)
    family, _, _, _, place = next((row for row in found if row[0] == socket.AF_INET), found[0])
    return family, (str(place[0]), int(place[1]))
