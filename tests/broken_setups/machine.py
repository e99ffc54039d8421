"""Set-ups with faults of the machine: disk space, drivers, builds of torch, devices."""

from broken_setups.changes import edit_json, with_probes
from set_ups import GPU, STORAGE, T4, WHEELS, Case, in_slurm, with_gpus


def mixed_gpus(set_up):
    with_gpus(set_up, 2)
    set_up.node["gpus"][1] = dict(T4)


def small_disk(set_up):
    set_up.node["storage"] = {**STORAGE, "free_bytes": 3_000_000}
    edit_json(set_up.model / "config.json")
    set_up.set("checkpoint", {"keep": 20})


CASES = [
    Case(
        "run_folder_local",
        "checkpoints on /tmp of the first node were lost after the requeue",
        lambda s: (in_slurm(s, nodes=2), s.node.update(storage={**STORAGE, "filesystem": "ext4", "kind": "ssd"})),
        after=lambda s: s.node.update(storage=STORAGE),
    ),
    Case(
        "checkpoint_room",
        "No space left on device while saving (DeepSpeed#2921)",
        small_disk,
        level="problem",
    ),
    Case(
        "driver_old",
        "The NVIDIA driver on your system is too old",
        with_probes(gpus=1, driver="535.1", driver_cuda="12.2"),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "driver_old",
        "ComfyUI#16438: a Blackwell with a driver for CUDA 12: only cu128 has kernels for it",
        with_probes(driver="570.1", driver_cuda="12.8", torch_cuda="13.0", capabilities=("12.0",)),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "driver_old",
        "a driver for CUDA 11, which no current torch supports",
        with_probes(gpus=1, driver="470.1", driver_cuda="11.4"),
        line="",
        after=lambda s: s.probes.update(driver_cuda="13.0"),
    ),
    Case(
        "torch_build",
        "torch.cuda.is_available() is False: a CPU build",
        with_probes(driver="590.1", driver_cuda="13.1"),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
    ),
    Case(
        "torch_build",
        "a CPU build, and a driver for CUDA 11, with which no other build runs",
        with_probes(driver="470.1", driver_cuda="11.4"),
        line="",
        after=lambda s: s.probes.update(driver_cuda="13.0", torch_cuda="13.0"),
    ),
    Case(
        "torch_build",
        "a CPU build with a B200 and a driver for CUDA 12: cu126 has no kernels for the B200",
        with_probes(driver="570.1", driver_cuda="12.8", capabilities=("10.0",)),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "torch_build",
        "a CPU build with an H100 and a driver for CUDA 12",
        with_probes(driver="535.1", driver_cuda="12.2", capabilities=("9.0",)),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "torch_build",
        "a CPU build with a V100 and a driver for CUDA 13: cu130 has no kernels for the V100",
        with_probes(driver="580.1", driver_cuda="13.0", capabilities=("7.0",)),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "gpu_kernels",
        "a Blackwell with a driver for CUDA 12, and cu126; the driver does not support cu130",
        lambda s: (
            with_gpus(s, 1, {**GPU, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}),
            s.probes.update(WHEELS["cu126"], driver_cuda="12.8"),
        ),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "gpu_kernels",
        "a B200 and a V100 in one machine: no build has kernels for both",
        lambda s: (
            with_gpus(s, 1, {**GPU, "capability": "10.0"}),
            s.node["gpus"].append({**GPU, "name": "Tesla V100", "capability": "7.0"}),
        ),
        line="",
        after=lambda s: s.node["gpus"].pop(),
    ),
    Case(
        "gpu_kernels",
        "a V100 and a Blackwell in one machine with cu126: cu130 has kernels only for the Blackwell",
        lambda s: (
            with_gpus(s, 1, {**GPU, "name": "Tesla V100", "capability": "7.0"}),
            s.node["gpus"].append({**GPU, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}),
            s.probes.update(WHEELS["cu126"]),
        ),
        line="",
        after=lambda s: s.node["gpus"].pop(),
    ),
    Case(
        "gpu_kernels",
        "pytorch#172352: no kernel image is available for execution on a V100: only cu126 has kernels for it",
        lambda s: with_gpus(s, 1, {**GPU, "name": "Tesla V100", "capability": "7.0"}),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "gpu_kernels",
        "no kernel image is available for execution on a GPU that is newer than torch",
        with_probes(gpus=1, torch_archs=("sm_70", "sm_75")),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
    ),
    Case(
        "gpu_busy",
        "out of memory: somebody else's process on the GPU",
        with_probes(gpus=1, gpu_processes={0: 40 * 2**30}),
        after=lambda s: s.probes.update(gpu_processes={}),
    ),
    Case(
        "gpu_busy",
        "out of memory on one rank of four: a notebook was still open on its GPU",
        with_probes(gpus=4, gpu_processes={0: 0, 1: 0, 2: 40 * 2**30, 3: 0}),
    ),
    Case(
        "gpus_differ",
        "every step waited for the T4",
        mixed_gpus,
    ),
]
