"""The head of every benchmark's output: machine and versions."""

import torch

from paratune import hardware

GIB = 2**30


def machine_lines() -> list[str]:
    """Return Markdown lines that name the processor, memory, GPUs, threads and versions."""
    node, versions = hardware.describe_node(), hardware.package_versions()
    gpus = ", ".join(gpu["name"] for gpu in node["gpus"] or []) or "none"
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return [
        f"- processor: {node['cpu_model']}, {node['num_logical_cores']} logical cores; "
        f"memory: {node['ram_bytes'] / GIB:.1f} GiB; GPUs: {gpus}; {node['os']}",
        f"- threads of PyTorch in a process: {torch.get_num_threads()}",
        f"- {named}",
    ]
