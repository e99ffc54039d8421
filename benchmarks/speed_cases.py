"""The cases of `speed.py`: their rows, the files that all sides read, and the model FLOPs of their tokens.

A trainer that groups by length is fast only if it can choose from many rows, and a short measurement has few. So rows
are chosen as follows: the rows of a pool of 50 batches, which transformers' LengthGroupedSampler sorts at a time, are
sorted by length and divided into batches as it does, and evenly spaced batches are selected. Together they have the
lengths of the pool, and each has as little padding as in a training on all rows.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.data.order import epoch_order
from paratune.data.read import read_table

POOL_BATCHES = 50
NUM_WARMUP_STEPS = 2
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
"""Width of BERT-base (Devlin et al. 2019)."""
LABELS: dict[str, Any] = {"id2label": {0: "0", 1: "1"}, "label2id": {"0": 0, "1": 1}}
"""Labels as in the files."""


@dataclass(frozen=True)
class Case:
    """A training or evaluation, and its number of measured steps."""

    name: str
    kind: str
    """classification, qa or mlm."""
    folder: str
    columns: dict[str, str]
    max_length: int
    batch_size: int
    num_steps: int
    """Measured steps; for an evaluation, batches."""
    model: str = "minilm"
    """minilm: the demo model; base: BERT-base's width with random weights."""
    evaluates: bool = False
    stride: int = 128
    """Stride of windows over longer contexts."""


IMDB = Case("imdb", "classification", "imdb", {"text": "text", "label": "label"}, 512, batch_size=16, num_steps=5)
CASES = {
    "imdb": IMDB,
    "mrpc": Case(
        "mrpc",
        "classification",
        "mrpc",
        {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
        max_length=128,
        batch_size=32,
        num_steps=6,
    ),
    "squad": Case("squad", "qa", "squad_v2", {}, max_length=384, batch_size=16, num_steps=5),
    "mlm": Case("mlm", "mlm", "mtsamples", {"text": "transcription"}, max_length=512, batch_size=8, num_steps=3),
    "eval": replace(IMDB, name="eval", batch_size=32, num_steps=6, evaluates=True),
}
OF_BASE = {"num_steps": 3, "batch_size": 8}
"""On a CPU, where it takes seven times as long."""
OF_GPU = {"num_steps": 40}


def write_case(case: Case, data: Path, work: Path, model: Path) -> dict[str, Any]:
    """Write the rows of a case as one file; return the settings of every side.

    Args:
        case: The case.
        data: Folder of the data sets.
        work: Folder of the file.
        model: Folder of model and tokenizer.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    table = _demo() if case.folder.startswith("demo:") else pq.read_table(data / case.folder / "train.parquet")
    rows = table.take(np.random.default_rng(1).permutation(table.num_rows))
    make = {"classification": _texts, "qa": _windows, "mlm": _documents}[case.kind]
    table, lengths = make(case, rows, tokenizer)
    file = work / f"{case.name}-{case.model}.parquet"
    pq.write_table(table, file)
    return {
        **asdict(case),
        "file": str(file),
        "model_folder": str(model),
        "num_warmup_steps": NUM_WARMUP_STEPS,
        "seed": _even_seed(lengths, case),
        "lengths": lengths.tolist(),
        "num_samples": case.num_steps * case.batch_size,
        "num_tokens": int(lengths.sum()),
    }


def _demo() -> pa.Table:
    """Return demo:sentences with the labels of the other sets, 0 and 1."""
    table = read_table("demo:sentences")
    labels = [int(label == "positive") for label in table["label"].to_pylist()]
    return table.set_column(table.column_names.index("label"), "label", pa.array(labels))


def _texts(case: Case, rows: pa.Table, tokenizer: Any) -> tuple[pa.Table, Any]:
    rows = rows.slice(0, POOL_BATCHES * case.batch_size)
    columns = [rows[case.columns[key]].to_pylist() for key in ("text", "text_pair") if key in case.columns]
    tokens = tokenizer(*columns, truncation=True, max_length=case.max_length)["input_ids"]
    chosen, lengths = _grouped(np.array([len(row) for row in tokens]), case)
    return rows.select(list(case.columns.values())).take(chosen), lengths


def _windows(case: Case, rows: pa.Table, tokenizer: Any) -> tuple[pa.Table, Any]:
    """Split windows as run_qa.py does, and make each a separate row: a question and its part of the context."""
    windows: list[dict[str, Any]] = []
    tokens: list[int] = []
    for row in rows.to_pylist():
        question, context, answers = row["question"].lstrip(), row["context"], row["answers"]
        options = {"truncation": "only_second", "max_length": case.max_length, "stride": case.stride}
        cut = tokenizer(question, context, return_overflowing_tokens=True, return_offsets_mapping=True, **options)
        for number, offsets in enumerate(cut["offset_mapping"]):
            places = [at for at, part in zip(offsets, cut.sequence_ids(number), strict=True) if part == 1]
            begin, end = places[0][0], places[-1][1]
            inside = [
                (text, start - begin)
                for text, start in zip(answers["text"], answers["answer_start"], strict=True)
                if begin <= start and start + len(text) <= end
            ]
            length = len(tokenizer(question, context[begin:end])["input_ids"])
            if length <= case.max_length:  # a window that starts inside a word may have more tokens than before
                texts, starts = [text for text, _ in inside], [start for _, start in inside]
                answer = {"text": texts[:1], "answer_start": starts[:1]}
                windows.append({"id": str(len(windows)), "question": question, "context": context[begin:end]})
                windows[-1]["answers"] = answer
                tokens.append(length)
        if len(windows) >= POOL_BATCHES * case.batch_size:
            break
    chosen, lengths = _grouped(np.array(tokens), case)
    kind = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    fields = [("id", pa.string()), ("question", pa.string()), ("context", pa.string()), ("answers", kind)]
    return pa.Table.from_pylist(windows, schema=pa.schema(fields)).take(chosen), lengths


def _documents(case: Case, rows: pa.Table, tokenizer: Any) -> tuple[pa.Table, Any]:
    """Use documents that each fill a window: if they were joined, the sides would split them differently."""
    num_windows = case.num_steps * case.batch_size
    texts = []
    for text in rows[case.columns["text"]].drop_null().to_pylist():
        if len(tokenizer(text, truncation=True, max_length=case.max_length)["input_ids"]) == case.max_length:
            texts.append(text)
        if len(texts) == num_windows:
            return pa.table({case.columns["text"]: texts}), np.full(num_windows, case.max_length)
    raise SystemExit(f"{case.folder}: too few documents of {case.max_length} tokens for {num_windows} windows")


def _grouped(lengths: Any, case: Case) -> tuple[Any, Any]:
    """Return the rows of evenly spaced batches of the sorted pool, batches in random order, and the lengths of these.

    Read one after the other, they are the batches of a training that groups by length.
    """
    batches = np.argsort(-lengths, kind="stable")[: len(lengths) // case.batch_size * case.batch_size]
    batches = batches.reshape(-1, case.batch_size)
    places = ((np.arange(case.num_steps) + 0.5) * len(batches) / case.num_steps).astype(int)
    order = np.sort(places) if case.evaluates else np.random.default_rng(2).permutation(places)
    chosen = batches[order].reshape(-1)
    return chosen, lengths[chosen]


def _even_seed(lengths: Any, case: Case) -> int:
    """Return the seed of paratune's order whose measured steps have a number of tokens closest to that of all rows.

    The first steps are warm-up and the last ones belong to the next epoch: not every row occurs exactly once.
    """
    skipped = NUM_WARMUP_STEPS * case.batch_size

    def measured(seed: int) -> int:
        orders = [epoch_order(len(lengths), seed, 0)[skipped:], epoch_order(len(lengths), seed, 1)[:skipped]]
        return int(lengths[np.concatenate(orders)].sum())

    total = int(lengths.sum())
    return min(range(1, 2001), key=lambda seed: abs(measured(seed) - total))


def make_models(work: Path, wanted: set[str], demo: str) -> dict[str, Path]:
    """Write the complete initial models of the cases, so that no side creates weights; return their folders.

    Args:
        work: Their folder; existing ones are kept.
        wanted: Models of `Case`.
        demo: Folder of the demo model, whose tokenizer all of them use.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folders = {}
    for name in sorted(wanted):
        folders[name] = work / f"model-{name}"
        if (folders[name] / "model.safetensors").exists():
            continue
        tokenizer = AutoTokenizer.from_pretrained(demo)
        torch.manual_seed(1)
        if name == "base":
            model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **BASE, **LABELS))
        else:
            model = BertForSequenceClassification.from_pretrained(demo, **LABELS)
        tokenizer.save_pretrained(folders[name])
        model.save_pretrained(folders[name])
    return folders


def model_flops(case: Case, lengths: Any, config: dict[str, Any]) -> float:
    """Return the floating-point operations that the model needs for samples, without padding.

    Forward, for each of L layers: 2 (4 D^2 + 2 D F) a token in the four projections of attention and the two of the
    feed-forward part, and 4 D s^2 a sequence of s tokens in its scores and weighted sums. Heads: classification 2 D^2
    (the pooler) a sequence; QA 4 D a token; MLM 2 D^2 + 2 D V for each hidden token, 15% of them. Embeddings, norms,
    softmax and activations are not counted. Training is three times forward: backward has two products for each.

    Source: Narayanan et al., Megatron-LM, SC 2021, section 5.1 and appendix, without recomputation, and with the
    lengths of the sequences instead of one length; Kaplan et al. 2020, section 2.1.
    """
    num_layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    lengths = np.asarray(lengths, dtype=np.float64)
    num_tokens = lengths.sum()
    forward = num_layers * (2 * (4 * width**2 + 2 * width * inner) * num_tokens + 4 * width * (lengths**2).sum())
    forward += {
        "classification": 2 * width**2 * len(lengths),
        "qa": 4 * width * num_tokens,
        "mlm": 0.15 * num_tokens * (2 * width**2 + 2 * width * config["vocab_size"]),
    }[case.kind]
    return float(forward if case.evaluates else 3 * forward)


def read_config(model: Path) -> dict[str, Any]:
    """Return the model's own configuration; all sides use its dropout."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    dropout = {key: config[key] for key in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    assert set(dropout.values()) == {0.1}, f"{model}: dropout is {dropout}"
    return config
