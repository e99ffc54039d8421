"""Cost of predicting a model's memory: seconds and RAM of tracing it, each model in a separate process.

OMP_NUM_THREADS=1 python benchmarks/plan_memory.py
"""

import importlib
import multiprocessing
import time
from typing import Any

from machine import machine_lines

ROWS, LENGTH = 8, 512
MODELS: dict[str, dict[str, Any]] = {
    "bert-base": {"model_type": "bert"},
    "bert-large": {
        "model_type": "bert",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "deberta-v2, 900 M": {
        "model_type": "deberta-v2",
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "conv_kernel_size": 3,
        "max_relative_positions": -1,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
}


def traced(options: dict[str, Any], precision: str) -> dict[str, Any]:
    """Trace a model; return the cost of tracing, and the memory that one process needs on a GPU."""
    from transformers import AutoConfig

    from paratune.config.strategy_sections import SingleOptions
    from paratune.config.task_sections import ClassificationTask
    from paratune.config.traits import TRAITS
    from paratune.hardware import peak_memory_bytes
    from paratune.planning.memory import peak
    from paratune.planning.profile import Shape, profile
    from paratune.planning.states import PredictionSetup
    from paratune.precision import POLICIES

    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    config = AutoConfig.for_model(**options, pad_token_id=0)
    lengths = (*(LENGTH,) * (ROWS - 1), LENGTH - 1)
    module = options["model_type"].replace("-", "_")
    importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    before = peak_memory_bytes() or 0
    wall, cpu = time.perf_counter(), time.process_time()
    traced_profile = profile(config, task, Shape(lengths), POLICIES[precision])
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    after = peak_memory_bytes() or 0
    setup = PredictionSetup(SingleOptions(kind="single"), TRAITS["single"], POLICIES[precision], 1, 1, ROWS, 1)
    return {
        "parameters": traced_profile.num_parameters,
        "kernels": len(traced_profile.forward.kernels) + len(traced_profile.backward.kernels),
        "wall_s": seconds[0],
        "cpu_s": seconds[1],
        "ram_mib": after / 2**20,
        "more_mib": (after - before) / 2**20,
        "peak_gib": peak(traced_profile, setup).total / 2**30,
    }


def main() -> None:
    print("\n".join(machine_lines()))
    print(f"\n{ROWS} rows of {LENGTH} tokens, one of them one shorter, single\n")
    print(
        "| model | precision | parameters | kernels | CPU s | wall s | RAM MiB | of it tracing | peak on a GPU, GiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, options in MODELS.items():
        for precision in ("fp32", "bf16"):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                figures = pool.apply(traced, (options, precision))
            print(
                f"| {name} | {precision} | {figures['parameters']:,} | {figures['kernels']:,} | "
                f"{figures['cpu_s']:.1f} | {figures['wall_s']:.1f} | {figures['ram_mib']:.0f} | "
                f"{figures['more_mib']:.0f} | {figures['peak_gib']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
