"""`benchmarks/peers/padding_free.py`: its batches, its logits and its steps, beside padded rows in transformers itself.

Padded rows with transformers' SDPA attention are the other implementation.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import tiny_tokenizer
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from paratune.batch import Batch
from paratune.batch.packing import pack

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
if str(PEERS) not in sys.path:
    sys.path.insert(0, str(PEERS))

import padding_free  # noqa: E402

LENGTHS = [5, 17, 1, 9]
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERN = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}


def rows(kind: str) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(5, 60, (length,), generator=generator)
        row: dict[str, Any] = {"input_ids": ids, "token_type_ids": (torch.arange(length) > length // 2).long()}
        if kind == "qa":
            row |= {"start_positions": length // 2, "end_positions": length - 1}
        made.append(row | ({"labels": number % 2} if kind == "classification" else {}))
    return made


def padded(made: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in made)
    batch = {}
    for key, value in made[0].items():
        if isinstance(value, torch.Tensor):
            grown = [torch.nn.functional.pad(row[key], (0, longest - len(row[key]))) for row in made]
            batch[key] = torch.stack(grown)
        else:
            batch[key] = torch.tensor([row[key] for row in made])
    lengths = torch.tensor([len(row["input_ids"]) for row in made])
    return batch | {"attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def model_of(name: str, kind: str) -> Any:
    torch.manual_seed(1)
    if name == "modernbert":
        config = transformers.ModernBertConfig(**SIZES, **MODERN, global_attn_every_n_layers=3, local_attention=6)
        return transformers.ModernBertForSequenceClassification(config)
    classes = {"classification": "SequenceClassification", "qa": "QuestionAnswering", "mlm": "MaskedLM"}
    return getattr(transformers, f"BertFor{classes[kind]}")(transformers.BertConfig(**SIZES, **OFF))


def inputs_of(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return batch if model.config.model_type == "bert" else {k: v for k, v in batch.items() if k != "token_type_ids"}


def test_a_batch_has_the_tokens_of_a_packed_batch_of_paratune_in_the_same_order() -> None:
    made = rows("classification")
    whole = padded(made)
    packed = pack(
        Batch(
            input_ids=whole["input_ids"],
            row_weight=torch.ones(4),
            index=torch.arange(4),
            num_samples=4,
            num_tokens=sum(LENGTHS),
            num_padded_tokens=whole["input_ids"].numel(),
            loss_denominator=4.0,
            attention_mask=whole["attention_mask"],
            token_type_ids=whole["token_type_ids"],
            max_seqlen=max(LENGTHS),
        )
    )
    flat = padding_free.FlatCollator("classification", None)(made)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert torch.equal(flat[name][0], getattr(packed, name)), name
    assert flat["cu_seq_lens_q"].tolist() == flat["cu_seq_lens_k"].tolist() == [0, 5, 22, 23, 32]
    assert flat["cu_seq_lens_q"].dtype == packed.cu_seqlens.dtype == torch.int32
    assert (flat["max_length_q"], flat["max_length_k"]) == (17, 17)
    assert flat["labels"].tolist() == [0, 1, 0, 1]
    assert padding_free.FlatCollator("mlm", tiny_tokenizer(), first_position=2)(
        [{**row, "special_tokens_mask": [0] * len(row["input_ids"])} for row in made]
    )["position_ids"][0].tolist() == [2 + place for length in LENGTHS for place in range(length)]


@pytest.mark.parametrize(
    ("name", "kind"), [("bert", "classification"), ("modernbert", "classification"), ("bert", "qa"), ("bert", "mlm")]
)
def test_logits_and_gradients_are_those_of_padded_rows(name: str, kind: str) -> None:
    made = rows(kind)
    whole, flat = padded(made), padding_free.FlatCollator(kind if kind != "mlm" else "", None)(made)
    if kind == "mlm":  # every third token is labelled
        places = torch.arange(max(LENGTHS)) % 3 == 0
        whole["labels"] = whole["input_ids"].where(places & (whole["attention_mask"] > 0), -100)
        flat["labels"] = whole["labels"][whole["attention_mask"] > 0][None]
    expected, ours = model_of(name, kind).train(), model_of(name, kind).train()
    if kind == "qa":  # transformers lets padding compete for the answer; here rows are without padding
        singles = [expected(**padded([row])) for row in made]
        out_loss = torch.stack([single.loss for single in singles]).mean()
        logits = [torch.stack([single.start_logits[0], single.end_logits[0]]) for single in singles]
    else:
        out = expected(**inputs_of(expected, whole))
        out_loss, logits = out.loss, out.logits
    padding_free.make_padding_free(ours, kind, on_gpu=False)
    out = ours(**inputs_of(ours, flat), num_items_in_batch=None)
    if kind == "qa":
        for row, single in enumerate(logits):
            both = torch.stack([out.start_logits[row], out.end_logits[row]])[:, : LENGTHS[row]]
            torch.testing.assert_close(both, single, rtol=0, atol=1e-6)
    elif kind == "mlm":
        torch.testing.assert_close(out.logits[0], logits[whole["attention_mask"] > 0], rtol=0, atol=1e-6)
    else:
        torch.testing.assert_close(out.logits, logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.loss, out_loss, rtol=1e-6, atol=0)
    out.loss.backward()
    out_loss.backward()
    for (key, a), b in zip(ours.named_parameters(), expected.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=2e-6, msg=key)


class Losses(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        self.values += [logs["loss"]] if "loss" in logs else []


def test_trainer_takes_the_same_steps_as_with_padding(tmp_path: Path) -> None:
    made = rows("classification") * 3
    losses = {}
    for way in ("padded", "padding-free"):
        model, watch = model_of("bert", "classification"), Losses()
        if way == "padding-free":
            padding_free.make_padding_free(model, "classification", on_gpu=False)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=3,
            learning_rate=1e-3,
            logging_steps=1,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **padding_free.ARGUMENTS,
        )
        collator = padded if way == "padded" else padding_free.FlatCollator("classification", None)
        Trainer(model=model, args=arguments, train_dataset=made, data_collator=collator, callbacks=[watch]).train()
        losses[way] = watch.values
    assert len(losses["padded"]) == 4
    assert losses["padding-free"] == pytest.approx(losses["padded"], abs=2e-5)
    assert losses["padded"][0] != losses["padded"][-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_flash_attention_of_torch_has_the_arguments_that_are_passed(dtype: torch.dtype) -> None:
    # Tensors without data: PyTorch checks the arguments of the operator and of its derivative, and computes nothing.
    query, key, value = (torch.zeros(1, 2, 32, 16, dtype=dtype, device="meta", requires_grad=True) for _ in range(3))
    ends = torch.zeros(5, dtype=torch.int32, device="meta")
    rows = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 17, "max_length_k": 17}
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
        out, _ = padding_free.attend_flash(
            None, query, key, value, None, scaling=0.25, dropout=0.1, sliding_window=4, other=1, **rows
        )
    assert (out.shape, out.device.type) == ((1, 32, 2, 16), "meta")
    assert out.dtype == torch.bfloat16  # float32 is cast as autocast does
    out.sum().backward()
    assert query.grad.shape == query.shape
    assert query.grad.dtype == dtype
