"""Checks of the communication between processes: gloo, NCCL, host name, loopback interface."""

import socket
import threading
from collections.abc import Iterator

from paratune.doctor.finding import Finding, MachineFacts


def check_distributed(machine: MachineFacts) -> Iterator[Finding]:
    gpus = machine.node["gpus"]
    if gpus is None:
        return
    import torch.distributed as dist

    remedy = "install an official build of torch"
    if not dist.is_available() or not dist.is_gloo_available():
        yield Finding("gloo", "problem", "torch has no gloo", "Runs of several processes on CPUs need it.", remedy)
    if len(gpus) > 1 and not (dist.is_available() and dist.is_nccl_available()):
        yield Finding("nccl", "problem", "torch has no NCCL", "Runs on several GPUs need it.", remedy)


def check_hostname(machine: MachineFacts) -> Iterator[Finding]:
    if machine.environ.get("GLOO_SOCKET_IFNAME"):  # gloo then uses this interface, and does not resolve the name
        return
    name = machine.node["hostname"]
    addresses = resolve(name)
    if any(can_listen(address) for address in addresses):
        return
    fact = f"the name of this machine, {name}, does not resolve"
    if addresses:
        fact = f"the name of this machine, {name}, resolves to {', '.join(addresses)}, which is not this machine"
    why = "gloo resolves the host name; without its own address, processes can wait for each other for ever."
    remedy = "for runs on one machine; for several machines, name their common interface"
    yield Finding("hostname", "warning", fact, why, remedy, line="export GLOO_SOCKET_IFNAME=lo")


def check_loopback(machine: MachineFacts) -> Iterator[Finding]:
    if not loopback_works():
        why = "The processes of a run on one machine use it to find each other."
        remedy = "which starts the interface; or allow connections in the firewall or the sandbox"
        yield Finding("loopback", "problem", "no connection over 127.0.0.1", why, remedy, line="ip link set lo up")


def resolve(name: str, timeout_s: float = 5.0) -> list[str]:
    """Return the addresses of a host name; an empty list without an answer in time."""
    addresses: list[str] = []

    def look_up() -> None:
        try:
            addresses.extend(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))
        except OSError:
            return

    # The resolver has no time limit; a thread that still waits ends with the process.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return list(addresses)


def can_listen(address: str) -> bool:
    """Return whether this machine can listen on an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
    except OSError:
        return False
    return True


def loopback_works() -> bool:
    """Return whether a byte can be sent over a connection to 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"?")
                    accepted.settimeout(5)
                    return accepted.recv(1) == b"?"
    except OSError:
        return False
