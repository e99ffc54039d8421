"""Checks of the model: complete and safe files, tokenizer, precision, memory of its states."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from paratune.base.units import format_bytes
from paratune.config.check_train import FREEZE_KEYS, NOT_GIVEN, given
from paratune.config.feasibility import DECODER_START
from paratune.config.model_states import adam_bytes, model_state_bytes, shard_count
from paratune.config.plain import one_line
from paratune.config.sections import Config
from paratune.doctor.facts import Finding, ModelFacts, QueuedRun, has_bf16
from paratune.doctor.options import FP16_HOSTILE


def check_model(setup: QueuedRun) -> Iterator[Finding]:
    model = setup.model
    if model is None:
        return
    where = setup.where("model.name")
    if model.is_on_hub:
        yield from _cache_findings(setup, model, where)
    elif model.error:
        line = f"model.name: {model.nearest}" if model.nearest else ""
        remedy = "" if line else "name a folder from save_pretrained, or a model of the hub"
        yield Finding("model_absent", "problem", model.error, "Training needs it.", remedy, where, line)
    else:
        yield from _folder_findings(model, where)
    if model.needs_code and not setup.config.model.trust_remote_code:
        fact = f"{model.name} contains Python code, which does not run unless you allow it"
        why = "transformers has no such model. The code can do everything that you can do: read it first."
        yield Finding("model_code", "problem", fact, why, "", where, "model.trust_remote_code: true")
    if model.lacks_decoder_start:
        fact = f"the config.json of {model.name} ({model.model_type}) has no {DECODER_START}"
        why = "The input of its decoder begins with that token; training fails without it."
        line = f"model.overrides: {one_line({**setup.config.model.overrides, DECODER_START: 0})}"
        yield Finding("decoder_start", "problem", fact, why, "", where, line)


def _cache_findings(setup: QueuedRun, model: ModelFacts, where: str) -> Iterator[Finding]:
    command = f"hf download {shlex.quote(model.name)}"
    remedy = "on a machine with a network; or copy all files with paratune bundle"
    why = "The machines of the run have no access to the hub, so the run ends before its first step."
    absent = [*model.missing, *(name for name, _ in model.damaged)]
    if model.folder is None:
        code, fact = "cache_absent", f"{model.name} is on the hub and not in the cache"
    elif absent:
        code, fact = "cache_incomplete", f"the cache of {model.name} lacks {', '.join(absent)} ({model.folder})"
    else:
        return
    if setup.is_offline:
        yield Finding(code, "problem", fact, why, remedy, where, command)
    else:
        yield Finding(code, "note", fact, "The run downloads it at its start.", "", where, command)


def safetensors_line(pickle: Path) -> str:
    """Return the shell command that saves the weights of a pickle as safetensors in the same folder."""
    safe = pickle.with_name("model.safetensors")
    code = (
        "import torch; from safetensors.torch import save_file; "
        f"weights = torch.load({str(pickle)!r}, map_location='cpu', weights_only=True); "
        f"save_file({{k: v.clone() for k, v in weights.items()}}, {str(safe)!r}, {{'format': 'pt'}})"
    )
    return f"python -c {shlex.quote(code)}"


def _folder_findings(model: ModelFacts, where: str) -> Iterator[Finding]:
    for name, reason in model.damaged:
        line = "git lfs pull" if "LFS" in reason else ""
        remedy = f"in {model.folder}" if line else "copy it again"
        fact = f"{model.folder}/{name} {reason}"
        yield Finding("model_damaged", "problem", fact, "The model cannot be loaded.", remedy, where, line)
    if model.pickles and model.folder is not None:
        fact = f"{model.folder} has its weights in {', '.join(model.pickles)}, and not in safetensors"
        why = "Reading a pickle can run any code (CVE-2025-32434, CVE-2026-24747); paratune reads none."
        remedy, line = "if you trust it", safetensors_line(model.folder / model.pickles[0])
        yield Finding("model_pickle", "problem", fact, why, remedy, where, line)
    if model.missing:
        fact = f"{model.folder} lacks {', '.join(model.missing)}"
        yield Finding("model_incomplete", "problem", fact, "The model cannot be loaded.", "copy it again", where)
    if not model.has_tokenizer:
        fact = f"{model.folder} has no tokenizer"
        why, line = "Training needs it.", "model.tokenizer: FOLDER_OF_THE_TOKENIZER"
        remedy = "name the folder of the tokenizer of its training"
        yield Finding("tokenizer_absent", "problem", fact, why, remedy, where, line)
    elif model.tokenizer_error is not None:
        why = "Without it every word would be unknown."
        yield Finding("tokenizer_unusable", "problem", model.tokenizer_error, why, "copy it again", where)


def check_vocabulary(setup: QueuedRun) -> Iterator[Finding]:
    model = setup.model
    if model is None or model.num_tokens is None or model.vocab_size is None or model.num_tokens <= model.vocab_size:
        return
    fact = f"the tokenizer has {model.num_tokens} tokens and {model.name} {model.vocab_size} embeddings"
    why = "A token without an embedding ends a run on a GPU with `device-side assert triggered`."
    if setup.config.model.from_scratch:
        where, line = setup.where("model.overrides"), ""
        remedy = f"set model.overrides.vocab_size to {model.num_tokens}"
    elif setup.config.model.tokenizer:
        where, line = setup.where("model.tokenizer"), "model.tokenizer: null"
        remedy = "this uses the tokenizer of the model"
    else:
        where, line = setup.where("model.name"), ""
        remedy = "set model.tokenizer to the tokenizer of its training"
    yield Finding("vocabulary", "problem", fact, why, remedy, where, line)


def check_half_precision(setup: QueuedRun) -> Iterator[Finding]:
    precision, where = setup.config.precision, setup.where("precision")
    can_bf16 = bool(setup.gpus) and all(has_bf16(gpu) is not False for gpu in setup.gpus)
    kind = setup.model.model_type if setup.model else None
    if precision == "fp16" and kind in FP16_HOSTILE:
        fact = f"models of the type {kind} have been reported to overflow in fp16"
        why = "The loss becomes NaN, or the model learns nothing without an error."
        line = "precision: bf16" if can_bf16 else "precision: fp32"
        yield Finding("fp16_model", "problem", fact, why, "docs/explanation/precision.md has the reports", where, line)
    if precision != "bf16":
        return
    flags = None if setup.start.is_elsewhere else setup.machine.node["cpu_flags"]
    if not setup.gpus and flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"} & set(flags):
        fact = "bf16 is set, and this CPU has no bf16 units"
        why = "Matrix products are about 5 times slower than in fp32."
        yield Finding("bf16_device", "warning", fact, why, "", where, "precision: fp32")


def _trains_a_part(config: Config) -> bool:
    """Return whether some weights have no gradients and states."""
    values = [given(config, key) for key in (*FREEZE_KEYS, "model.adapter")]
    return any(value is not NOT_GIVEN and value for value in values)


def check_states_fit(setup: QueuedRun) -> Iterator[Finding]:
    count, traits = setup.model.num_parameters if setup.model else None, setup.traits
    sizes = [gpu["memory_bytes"] for gpu in setup.gpus if gpu["memory_bytes"]]
    if count is None or traits is None or not sizes or traits.states_on == "cpu" or _trains_a_part(setup.config):
        return
    ranks, numbers = setup.start.world_size, adam_bytes(8 if setup.config.precision == "fp64" else 4)
    num_shards = shard_count(traits, ranks, setup.start.processes_per_node)
    unsharded = model_state_bytes(count, numbers=numbers).total
    per_gpu = model_state_bytes(count, shards=traits.shards, num_shards=num_shards, numbers=numbers).total
    if per_gpu <= min(sizes):
        return
    fact = f"the model states need {format_bytes(per_gpu)} on each GPU of {format_bytes(min(sizes))}"
    why = "They do not fit, even without activations: memory runs out in the first step."
    line = traits.fully_sharded_by or "" if ranks > 1 else ""
    remedy = f"shard them over {max(2, -(-unsharded // min(sizes)))} processes or more"
    if traits.offload_option is not None:
        remedy += f"; or offload (strategy.{traits.offload_option}: true)"
    yield Finding("states_too_large", "problem", fact, why, remedy, setup.where("strategy.kind"), line)
