"""Checks of the model: vocabulary, precision, memory of its states; `commands.doctor_model` reads its files."""

from collections.abc import Iterator

from paratune.base.units import format_bytes
from paratune.config.check_train import FREEZE_KEYS, NOT_GIVEN, given
from paratune.config.feasibility import FP16_HOSTILE
from paratune.config.model_states import adam_bytes, model_state_bytes, shard_count
from paratune.doctor.facts import Finding, QueuedRun, has_bf16


def check_model(setup: QueuedRun) -> Iterator[Finding]:
    yield from setup.model.findings if setup.model else ()
    model = None if setup.config.model.resize_vocabulary else setup.model
    if model is None or model.num_tokens is None or model.vocab_size is None or model.num_tokens <= model.vocab_size:
        return
    fact = f"the tokenizer has {model.num_tokens} tokens and {model.name} {model.vocab_size} embeddings"
    why = "A token without an embedding ends a run on a GPU with `device-side assert triggered`."
    if setup.config.model.from_scratch:
        key, line, remedy = "model.overrides", "", f"set model.overrides.vocab_size to {model.num_tokens}"
    elif setup.config.model.tokenizer:
        key, line, remedy = "model.tokenizer", "model.tokenizer: null", "this uses the tokenizer of the model"
    else:
        key, line, remedy = "model.name", "", "use the tokenizer of its training, or set model.resize_vocabulary: true"
    yield setup.finding("vocabulary", "problem", fact, why, line, remedy, key=key)


def check_half_precision(setup: QueuedRun) -> Iterator[Finding]:
    precision = setup.config.precision
    can_bf16 = bool(setup.gpus) and all(has_bf16(gpu) is not False for gpu in setup.gpus)
    kind = setup.model.model_type if setup.model else None
    if precision == "fp16" and kind in FP16_HOSTILE:
        fact = f"models of the type {kind} have been reported to overflow in fp16"
        why = "The loss becomes NaN, or the model learns nothing without an error."
        line = "precision: bf16" if can_bf16 else "precision: fp32"
        yield setup.finding("fp16_model", "problem", fact, why, line, "docs/explanation/precision.md has the reports")
    if precision != "bf16":
        return
    flags = None if setup.start.is_elsewhere else setup.machine.node["cpu_flags"]
    if not setup.gpus and flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"} & set(flags):
        fact = "bf16 is set, and this CPU has no bf16 units"
        why = "Matrix products are about 5 times slower than in fp32."
        yield setup.finding("bf16_device", "warning", fact, why, "precision: fp32")


def check_states_fit(setup: QueuedRun) -> Iterator[Finding]:
    count, traits = setup.model.num_parameters if setup.model else None, setup.traits
    sizes = [gpu["memory_bytes"] for gpu in setup.gpus if gpu["memory_bytes"]]
    # With these options some weights have no gradients and states.
    partial = [given(setup.config, key) for key in (*FREEZE_KEYS, "model.adapter")]
    trains_all = not any(value is not NOT_GIVEN and value for value in partial)
    if count is None or traits is None or not sizes or traits.states_on == "cpu" or not trains_all:
        return
    ranks, numbers = setup.start.world_size, adam_bytes(8 if setup.config.precision == "fp64" else 4)
    num_shards = shard_count(traits, ranks, setup.start.processes_per_node)
    unsharded = model_state_bytes(count, numbers=numbers)
    per_gpu = model_state_bytes(count, shards=traits.shards, num_shards=num_shards, numbers=numbers)
    if per_gpu <= min(sizes):
        return
    fact = f"the model states need {format_bytes(per_gpu)} on each GPU of {format_bytes(min(sizes))}"
    why = "They do not fit, even without activations: memory runs out in the first step."
    line = traits.fully_sharded_by or "" if ranks > 1 else ""
    remedy = f"shard them over {max(2, -(-unsharded // min(sizes)))} processes or more"
    if traits.offload_option is not None:
        remedy += f"; or offload (strategy.{traits.offload_option}: true)"
    yield setup.finding("states_too_large", "problem", fact, why, line, remedy, key="strategy.kind")
