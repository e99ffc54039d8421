"""Opens a store for processes started by srun or with variables set by hand: rank 0 listens, the others connect.

PyTorch's own rendezvous listens on all interfaces of rank 0's machine. This one listens only on the address to which
the others connect: loopback, if all processes are on one machine.
"""

import errno
import ipaddress
import logging
import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from paratune.errors import coded
from paratune.processes.launcher import Rendezvous

log = logging.getLogger(__name__)

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The errors of binding to an address of another machine, or to an IPv6 address on a machine without IPv6."""


def open_store(rendezvous: Rendezvous, rank: int, timeout: timedelta) -> Store:
    """Return the store; rank 0 makes it, the others connect to it; `timeout` is for both, and for reading a key.

    Raises:
        OSError: The port is taken (EADDRINUSE), or the host has no address.
        RuntimeError: Rank 0 cannot be reached.
    """
    listening = listen(rendezvous) if rank == 0 else None
    store = TCPStore(
        rendezvous.host,
        rendezvous.port,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listening is None else listening.detach(),
    )
    return PrefixStore(f"paratune/{rendezvous.name}", store)


def listen(rendezvous: Rendezvous) -> socket.socket:
    """Return a socket that listens on the address of the rendezvous, or on all interfaces if that is not known.

    Raises:
        OSError: The port is taken, or the host has no address.
    """
    addresses = socket.getaddrinfo(rendezvous.host, rendezvous.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in addresses:
        if is_reachable(rendezvous, str(address[0])):
            try:
                return socket.create_server((str(address[0]), rendezvous.port), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
    log.warning(
        "rank 0 listens on all interfaces, because %s is %s here: set MASTER_ADDR to the address of one interface",
        rendezvous.host,
        ", ".join(sorted({str(address[4][0]) for address in addresses})),
        extra=coded("launch.all_interfaces", host=rendezvous.host),
    )
    return socket.create_server(("", rendezvous.port), backlog=_BACKLOG)


_BACKLOG = 2048
"""The number of connections that may wait: all ranks connect at the same time."""


def is_reachable(rendezvous: Rendezvous, address: str) -> bool:
    """Return whether the other processes can reach this address of the host.

    A machine may resolve its own name to a loopback address (127.0.1.1 on Debian), which other machines cannot reach.
    """
    return rendezvous.is_one_machine or _is_literal(rendezvous.host) or not _is_loopback(address)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def rendezvous_from_environment() -> Rendezvous:
    """Return the rendezvous that MASTER_ADDR and MASTER_PORT describe.

    Raises:
        ValueError: One of them is missing, or the port is not a number.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be set beside RANK and WORLD_SIZE")
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return Rendezvous.at(
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], "variables", is_one_machine=is_one_machine
    )
