"""Train a ModernBERT with packed-encoders, and print the time of its steps: a peer of the part `speed` of gpu.py.

packed-encoders 0.2 needs torch 2.11, transformers below 5.10 and triton 3.6, so it has an environment of its own:

    python3 -m venv ENV && ENV/bin/pip install torch==2.11.0 packed-encoders==0.2.0
    python benchmarks/gpu.py --packed-encoders ENV/bin/python --out FOLDER

Nothing of paratune is imported here. Usage: ENV/bin/python packed_encoders_speed.py SETTINGS.json, as written by
gpu_parts/peer.py; the result is one JSON object on the last line. Rows are packed, and the model is called by the
package's entry for packed rows, which needs no padding at any place: its fastest way. Weights are float32 under
autocast to bf16, as the package requires for training; dropout is 0, as ModernBERT has it.

Without the package flash-attn, packed-encoders would pad rows in training. Then PyTorch's own copy of FlashAttention 2
takes its place. On a CPU the package has no kernels; the reference functions of its parts run instead, as a rehearsal.
"""

import importlib.metadata
import importlib.util
import itertools
import json
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

LEARNING_RATE = 1e-5
Hidden = Callable[[dict[str, Any]], Tensor]
"""Returns the states of all tokens, (T, D), of a packed batch."""


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the milliseconds of each measured step and facts of the run."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    device = torch.device(settings["device"])
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(settings["model_folder"])
    if not hasattr(config, "global_attn_every_n_layers"):  # files of newer transformers have the kind of each layer
        config.global_attn_every_n_layers = config.layer_types.index("full_attention", 1)
    model = AutoModelForSequenceClassification.from_config(config)
    model.to(device).train()
    hidden, attention = packed_model(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    batches = itertools.islice(
        packed_batches(settings["rows"], settings["batch_size"], device),
        settings["num_warmup_steps"] + settings["num_steps"],
    )
    marks, losses = [], []
    for batch in batches:
        with autocast:
            losses.append(loss_of(model, hidden(batch), batch))
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks.append(mark(device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    between = itertools.pairwise(marks[settings["num_warmup_steps"] - 1 :])
    names = ("torch", "transformers", "packed-encoders", "nvidia-cutlass-dsl", "triton", "flash-attn", "flash-attn-4")
    return {
        "step_ms": [a.elapsed_time(b) if device.type == "cuda" else 1000 * (b - a) for a, b in between],
        "attention": attention,
        "losses": [float(losses[0]), float(losses[-1])],
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "versions": {name: version for name in names if (version := version_of(name)) is not None},
    }


def packed_model(model: Any, device: torch.device) -> tuple[Hidden, str]:
    """Return the encoder's entry for packed rows, and the name of its attention."""
    import packed_encoders as pe

    if device.type == "cuda":
        attention = "flash-attn"
        if importlib.util.find_spec("flash_attn") is None:
            sys.modules["flash_attn"], attention = torch_flash(), "FlashAttention 2 of torch"
        pe.pack(model, attention_backend="flash")  # compares its forward pass with that of transformers
        engine = pe.get_engine(model)
        return lambda batch: engine.forward_packed(pe.PackedBatch(**batch["inputs"])), attention
    from packed_encoders.arch.modernbert_pieces import ModernBertOps, default_pieces
    from packed_encoders.config import ModernBertParams
    from packed_encoders.forward import packed_forward

    pieces = default_pieces()
    references = ModernBertOps(*(piece.reference for piece in pieces.all()), rope_tables=pieces.rope.prepare)
    parameters = ModernBertParams.from_hf_config(model.config)

    def hidden(batch: dict[str, Any]) -> Tensor:
        inputs = batch["inputs"]
        where = (inputs["input_ids"], inputs["cu_seqlens"], inputs["max_seqlen"], inputs["position_ids"])
        states: Tensor = packed_forward(model.model, parameters, *where, backend="flash", execution=references)
        return states

    return hidden, "references of the package"


def torch_flash() -> types.ModuleType:
    """Return a module like flash_attn with PyTorch's own copy of the same kernel."""

    def rows(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
    ) -> Tensor:
        left, right = (None if side < 0 else side for side in window_size)
        ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        options = {"scale": softmax_scale, "window_size_left": left, "window_size_right": right}
        out: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *ends, dropout_p, causal, False, **options)[0]
        return out

    def padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return attention of rows of equal length, (B, S, H, K): the package's own check calls it."""
        B, S = q.shape[:2]
        ends = torch.arange(0, (B + 1) * S, S, dtype=torch.int32, device=q.device)
        where = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": S, "max_seqlen_k": S}
        return rows(*(x.flatten(0, 1) for x in (q, k, v)), **where, **options).unflatten(0, (B, S))

    module = types.ModuleType("flash_attn")
    vars(module).update(flash_attn_func=padded, flash_attn_varlen_func=rows)
    return module


def packed_batches(rows: list[list[Any]], batch_size: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield packed batches of rows in random order, without end."""
    draw, tokens = random.Random(0), [torch.tensor(ids) for ids, _ in rows]
    while True:
        order = draw.sample(range(len(rows)), len(rows))
        for begin in range(0, len(rows) - batch_size + 1, batch_size):
            chosen = order[begin : begin + batch_size]
            lengths = [len(tokens[row]) for row in chosen]
            values = {
                "input_ids": torch.cat([tokens[row] for row in chosen]),
                "cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
                "position_ids": torch.cat([torch.arange(length) for length in lengths]),
                "labels": torch.tensor([rows[row][1] for row in chosen]),
            }
            if device.type == "cuda":
                values = {name: value.pin_memory().to(device, non_blocking=True) for name, value in values.items()}
            labels = values.pop("labels")
            yield {"inputs": {**values, "max_seqlen": max(lengths)}, "labels": labels}


def loss_of(model: Any, hidden: Tensor, batch: dict[str, Any]) -> Tensor:
    """Return the mean loss of the rows, read at the first token of each among all tokens, (T, D)."""
    first_BD = hidden[batch["inputs"]["cu_seqlens"][:-1].long()]
    return cross_entropy(model.classifier(model.drop(model.head(first_BD))), batch["labels"])


def mark(device: torch.device) -> Any:
    """Return the end of a step: an event on a GPU, which does not wait, otherwise the time in seconds."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def version_of(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
