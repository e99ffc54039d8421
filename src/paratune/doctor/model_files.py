"""Is the model there, whole, of safe files, and of a kind that learns in the precision asked for on these devices."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from paratune.base.units import format_bytes
from paratune.config.feasibility.layers import DECODER_START
from paratune.config.model_states import adam_bytes, model_state_bytes, shard_count
from paratune.config.plain import one_line
from paratune.doctor.feasible import FP16_HOSTILE
from paratune.doctor.finding import Finding
from paratune.doctor.installation import is_offline
from paratune.doctor.setup import ModelFacts, QueuedRun, has_bf16


def check_model(setup: QueuedRun) -> Iterator[Finding]:
    model = setup.model
    if model is None:
        return
    where = setup.where("model.name")
    if model.is_on_hub:
        yield from _judge_cache(setup, model, where)
    elif model.error:
        line = f"model.name: {model.nearest}" if model.nearest else ""
        remedy = "" if line else "name a folder that save_pretrained wrote, or a model of the hub"
        yield Finding("model_absent", "problem", model.error, "Training needs it.", remedy, where, line)
    else:
        yield from _judge_folder(model, where)
    if model.needs_code and not setup.config.model.trust_remote_code:
        what = f"{model.name} contains Python code, which does not run unless you allow it"
        why = "transformers has no such model; the code can do all that you can: read it first."
        yield Finding("model_code", "problem", what, why, "", where, "model.trust_remote_code: true")
    if model.lacks_decoder_start:
        what = f"the config.json of {model.name} ({model.model_type}) has no {DECODER_START}"
        why = "The input of its decoder begins with that token; training refuses the model."
        line = f"model.overrides: {one_line({**setup.config.model.overrides, DECODER_START: 0})}"
        yield Finding("decoder_start", "problem", what, why, "", where, line)


def _judge_cache(setup: QueuedRun, model: ModelFacts, where: str) -> Iterator[Finding]:
    offline = setup.start.no_network or is_offline(setup.machine.environ)
    fetch = f"hf download {shlex.quote(model.name)}"
    remedy = "where there is a network; or carry all of it over with paratune bundle"
    why = "The machines that train may not ask the hub, so the run ends before its first step."
    if model.folder is None:
        what = f"{model.name} is on the hub and not in the cache"
        if offline:
            yield Finding("cache_absent", "problem", what, why, remedy, where, fetch)
        else:
            yield Finding("cache_absent", "note", what, "It is fetched when the run starts.", "", where, fetch)
        return
    lacking = [*model.missing, *(name for name, _ in model.damaged)]
    if lacking and offline:
        what = f"the cache of {model.name} lacks {', '.join(lacking)} ({model.folder})"
        yield Finding("cache_incomplete", "problem", what, why, remedy, where, fetch)
    elif lacking:
        what = f"the cache of {model.name} lacks {', '.join(lacking)}"
        yield Finding("cache_incomplete", "note", what, "It is fetched when the run starts.", "", where, fetch)
    else:
        yield Finding("model", "ok", f"{model.name} is in the cache of the hub", where=where)


def safetensors_line(pickle: Path) -> str:
    """Return the line of shell that saves weights as safetensors beside their pickle, those of a head as well."""
    safe = pickle.with_name("model.safetensors")
    code = (
        "import torch; from safetensors.torch import save_file; "
        f"weights = torch.load({str(pickle)!r}, map_location='cpu', weights_only=True); "
        f"save_file({{k: v.clone() for k, v in weights.items()}}, {str(safe)!r}, {{'format': 'pt'}})"
    )
    return f"python -c {shlex.quote(code)}"


def _judge_folder(model: ModelFacts, where: str) -> Iterator[Finding]:
    is_sound = True
    for name, reason in model.damaged:
        is_sound = False
        line = "git lfs pull" if "LFS" in reason else ""
        remedy = f"in {model.folder}" if line else "copy it again"
        what = f"{model.folder}/{name} {reason}"
        yield Finding("model_damaged", "problem", what, "The model cannot be loaded.", remedy, where, line)
    if model.pickles and model.folder is not None:
        is_sound = False
        what = f"{model.folder} has its weights in {', '.join(model.pickles)}, and not in safetensors"
        why = "It is a pickle, which can run any code when it is read (CVE-2025-32434, CVE-2026-24747); none is read."
        remedy, line = "where you trust it", safetensors_line(model.folder / model.pickles[0])
        yield Finding("model_pickle", "problem", what, why, remedy, where, line)
    if model.missing:
        is_sound = False
        what = f"{model.folder} lacks {', '.join(model.missing)}"
        yield Finding("model_incomplete", "problem", what, "The model cannot be loaded.", "copy it again", where)
    if not model.has_tokenizer:
        is_sound = False
        what = f"{model.folder} has no tokenizer"
        why, line = "Texts cannot be read without it.", "model.tokenizer: FOLDER_OF_THE_TOKENIZER"
        yield Finding(
            "tokenizer_absent", "problem", what, why, "name the folder of the one it was trained with", where, line
        )
    elif model.tokenizer_error is not None:
        is_sound = False
        why = "Texts cannot be read without it, or every word would be unknown."
        yield Finding("tokenizer_unusable", "problem", model.tokenizer_error, why, "copy it again", where)
    if is_sound:
        yield Finding("model", "ok", f"{model.name}: {_size(model)}", where=where)


def _size(model: ModelFacts) -> str:
    kind = model.model_type or "model of unknown type"
    return kind if model.num_parameters is None else f"{kind}, {model.num_parameters:,} parameters"


def check_vocabulary(setup: QueuedRun) -> Iterator[Finding]:
    model = setup.model
    if model is None or model.num_tokens is None or model.vocab_size is None or model.num_tokens <= model.vocab_size:
        return
    what = f"the tokenizer has {model.num_tokens} tokens and {model.name} {model.vocab_size} embeddings"
    why = "A token without an embedding ends a run on a GPU with `device-side assert triggered`."
    if setup.config.model.from_scratch:
        where, line = setup.where("model.overrides"), ""
        remedy = f"set model.overrides.vocab_size to {model.num_tokens}"
    elif setup.config.model.tokenizer:
        where, line, remedy = (
            setup.where("model.tokenizer"),
            "model.tokenizer: null",
            "that is the one beside the model",
        )
    else:
        where, line = setup.where("model.name"), ""
        remedy = "set model.tokenizer to the tokenizer it was trained with"
    yield Finding("vocabulary", "problem", what, why, remedy, where, line)


def check_half_precision(setup: QueuedRun) -> Iterator[Finding]:
    precision, where = setup.config.precision, setup.where("precision")
    can_bf16 = bool(setup.gpus) and all(has_bf16(gpu) is not False for gpu in setup.gpus)
    kind = setup.model.model_type if setup.model else None
    if precision == "fp16" and kind in FP16_HOSTILE:
        what = f"models of the type {kind} have been reported to overflow in fp16"
        why = "The loss is not a number from some step on, or the model silently learns nothing."
        line = "precision: bf16" if can_bf16 else "precision: fp32"
        yield Finding("fp16_model", "problem", what, why, "docs/explanation/precision.md has the reports", where, line)
    if precision != "bf16":
        return
    flags = None if setup.start.is_elsewhere else setup.machine.node["cpu_flags"]
    if not setup.gpus and flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"} & set(flags):
        what = "bf16 is set, and this processor has no bf16 units"
        why = "Matrix products are some 5 times slower than in fp32."
        yield Finding("bf16_device", "warning", what, why, "", where, "precision: fp32")


def check_states_fit(setup: QueuedRun) -> Iterator[Finding]:
    count, traits = setup.model.num_parameters if setup.model else None, setup.traits
    sizes = [gpu["memory_bytes"] for gpu in setup.gpus if gpu["memory_bytes"]]
    if count is None or traits is None or not sizes or traits.states_on == "cpu" or setup.config.train.freeze_encoder:
        return
    ranks, numbers = setup.start.world_size, adam_bytes(8 if setup.config.precision == "fp64" else 4)
    num_shards = shard_count(traits, ranks, setup.start.processes_per_node)
    whole = model_state_bytes(count, numbers=numbers).total
    held = model_state_bytes(count, shards=traits.shards, num_shards=num_shards, numbers=numbers).total
    what = (
        f"weights, gradients and optimizer states take {format_bytes(held)} on each GPU of {format_bytes(min(sizes))}"
    )
    if held > min(sizes):
        why = "They do not fit before a single activation is kept: memory runs out in the first step."
        line = traits.fully_sharded_by or "" if ranks > 1 else ""
        remedy = f"shard them over {max(2, -(-whole // min(sizes)))} processes or more"
        if traits.offload_option is not None:
            remedy += f"; or offload (strategy.{traits.offload_option}: true)"
        yield Finding("states_too_large", "problem", what, why, remedy, setup.where("strategy.kind"), line)
    elif "gradients" in traits.shards and not traits.cuts_blocks and whole * 4 < min(sizes) and ranks > 1:
        why = (
            "Unsharded they would leave three quarters of the memory free, so sharding saves memory that is not "
            "needed and "
            "pays for it with communication."
        )
        yield Finding("sharding_needless", "note", what, why, "", setup.where("strategy.kind"), "strategy.kind: ddp")
