"""The store in which processes meet that srun, or variables by hand, have started: rank 0 listens, the others connect.

PyTorch's own rendezvous listens on all interfaces of rank 0's machine. This one listens on the address alone that the
others connect to: on one machine that is loopback.
"""

import errno
import ipaddress
import logging
import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from paratune.errors import coded
from paratune.processes.launcher import Meeting

log = logging.getLogger(__name__)

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What binding to an address of another machine fails with, and to an IPv6 address where there is none."""


def open_store(meeting: Meeting, rank: int, timeout: timedelta) -> Store:
    """Return the store; rank 0 makes it, the others connect to it.

    Args:
        meeting: Where.
        rank: Of this process.
        timeout: How long to wait for rank 0, and for what is asked of the store.

    Raises:
        OSError: The port is taken (EADDRINUSE), or the host has no address.
        RuntimeError: Rank 0 cannot be reached.
    """
    listening = listen(meeting) if rank == 0 else None
    store = TCPStore(
        meeting.host,
        meeting.port,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listening is None else listening.detach(),
    )
    return PrefixStore(f"paratune/{meeting.name}", store)


def listen(meeting: Meeting) -> socket.socket:
    """Return a socket that listens on the address of the meeting, or on all interfaces where that cannot be known.

    Raises:
        OSError: The port is taken, or the host has no address.
    """
    addresses = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in addresses:
        if is_reachable(meeting, str(address[0])):
            try:
                return socket.create_server((str(address[0]), meeting.port), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
    log.warning(
        "rank 0 listens on all interfaces, because %s is %s here: set MASTER_ADDR to the address of one interface",
        meeting.host,
        ", ".join(sorted({str(address[4][0]) for address in addresses})),
        extra=coded("launch.all_interfaces", host=meeting.host),
    )
    return socket.create_server(("", meeting.port), backlog=_BACKLOG)


_BACKLOG = 2048
"""Connections that may wait: all ranks come at once."""


def is_reachable(meeting: Meeting, address: str) -> bool:
    """Return whether the other processes reach this address of the host.

    A machine may know its own name as a loopback address (127.0.1.1 on Debian), as which others do not know it.
    """
    return meeting.is_one_machine or _is_literal(meeting.host) or not _is_loopback(address)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def meeting_of_variables() -> Meeting:
    """Return where processes meet that were given MASTER_ADDR and MASTER_PORT.

    Raises:
        ValueError: One of them is missing, or the port is none.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be set beside RANK and WORLD_SIZE")
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return Meeting.at(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], "variables", is_one_machine=is_one_machine)
