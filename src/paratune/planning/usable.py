"""The memory of a device that a program can use, which is less than its nominal size. No torch."""

from paratune.base.units import GIB
from paratune.hardware.devices import Device, find_device

_TOTAL_CAPACITY_GIB = {
    "v100-16gb": (15.75, "Morizeyao/GPT2-Chinese#215"),
    "v100-16gb-pcie": (15.75, "Morizeyao/GPT2-Chinese#215"),
    "v100-32gb": (31.74, "haotian-liu/LLaVA#812"),
    "v100-32gb-pcie": (31.74, "haotian-liu/LLaVA#812"),
    "v100s": (31.74, "haotian-liu/LLaVA#812, of a V100"),
    "t4": (14.75, "hpcaitech/Open-Sora#697"),
    "rtx-4090": (23.64, "ali-vilab/VGen#104"),
    "rtx-5090": (31.37, "Wan-Video/Wan2.1#465"),
    "a10": (21.99, "zai-org/CogVLM#236"),
    "a30": (23.53, "google/RB-Modulation#5"),
    "a100-40gb": (39.50, "TianheWu/CoSeR#10"),
    "a100-80gb": (79.25, "levihsu/OOTDiffusion#235"),
    "h100-80gb": (79.11, "vllm-project/vllm#27508"),
    "h100-nvl": (93.00, "ali-vilab/VACE#56"),
}
"""GiB that PyTorch prints as the total capacity of the device in an out-of-memory error, and the issue on GitHub."""
_OTHER_SHARE = 0.97
"""Of the nominal memory, for devices that are not listed: those above have 0.92 to 0.99."""


def usable_bytes(device: Device | None, memory_bytes: int) -> int:
    """Return the bytes of a device that its driver gives to programs, context included.

    Args:
        device: The listed device; None if it is unknown.
        memory_bytes: Its memory; where it is not the nominal size of the listed device (a machine's file, or a GPU
            of this machine, whose driver was asked), this number is returned.
    """
    listed = None if device is None else find_device(device.key)
    if listed is None or memory_bytes != listed.memory_bytes:
        return memory_bytes
    if listed.key in _TOTAL_CAPACITY_GIB:
        return int(_TOTAL_CAPACITY_GIB[listed.key][0] * GIB)
    return int(_OTHER_SHARE * memory_bytes)
