"""Checks of the communication between processes: gloo, NCCL, host name, loopback interface."""

import socket
import threading
from collections.abc import Iterator

from paratune.doctor.finding import Finding, Level, MachineFacts


def check_distributed(machine: MachineFacts) -> Iterator[Finding]:
    if machine.node["gpus"] is None:
        return
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        why = "Runs of several processes on CPUs need it."
        yield Finding("gloo", "problem", "torch has no gloo", why, "install an official build of torch")
    else:
        yield Finding("gloo", "ok", "gloo is available, for several processes on CPUs")
    if not machine.node["gpus"]:
        return
    if dist.is_available() and dist.is_nccl_available():
        yield Finding("nccl", "ok", "NCCL is available, for several GPUs")
    else:
        level: Level = "problem" if len(machine.node["gpus"]) > 1 else "note"
        yield Finding("nccl", level, "torch has no NCCL", "Runs on several GPUs need it.", "install an official build")


def check_hostname(machine: MachineFacts) -> Iterator[Finding]:
    name = machine.node["hostname"]
    addresses = resolve(name)
    remedy = "for runs on one machine; for several machines, name their common interface"
    line = "export GLOO_SOCKET_IFNAME=lo"
    if interface := machine.environ.get("GLOO_SOCKET_IFNAME"):
        yield Finding("hostname", "ok", f"gloo uses the interface {interface}, and does not resolve {name}")
    elif not addresses:
        why = "gloo resolves the host name; without an address, its processes can wait for each other for ever."
        fact = f"the name of this machine, {name}, does not resolve"
        yield Finding("hostname", "warning", fact, why, remedy, line=line)
    elif not any(can_listen(address) for address in addresses):
        fact = f"the name of this machine, {name}, resolves to {', '.join(addresses)}, which is not this machine"
        why = "Processes that connect to this address do not reach each other."
        yield Finding("hostname", "warning", fact, why, remedy, line=line)
    else:
        yield Finding("hostname", "ok", f"{name} resolves to this machine")


def check_loopback(machine: MachineFacts) -> Iterator[Finding]:
    if loopback_works():
        yield Finding("loopback", "ok", "processes can connect over 127.0.0.1")
    else:
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
