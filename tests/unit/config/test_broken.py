"""Sixty-eight broken configurations, each with the lines, the keys and the hints of all its problems."""

import pytest

from paratune.config.load import load_config
from paratune.errors import ConfigError

BROKEN = [
    ("epochs: 2", "epochs: many", [(14, "train.epochs", "")]),
    ("epochs: 2", "epochs: '2'", [(14, "train.epochs", "remove the quotes")]),
    ("epochs: 2", "epoch: 2", [(14, "train.epoch", "did you mean epochs?")]),
    ("epochs: 2", "num_train_epochs: 2", [(14, "train.num_train_epochs", "did you mean epochs?")]),
    ("epochs: 2", "epochs: 0", [(14, "train.epochs", "")]),
    ("epochs: 2", "epochs: [2]", [(14, "train.epochs", "")]),
    (
        "epochs: 2",
        "epochs: 2\n  learning_rte: 1e-4\n  weight_decay: -1",
        [(15, "train.learning_rte", "did you mean learning_rate?"), (16, "train.weight_decay", "")],
    ),
    (
        "epochs: 2",
        "epochs: 2\n  batch_size: 8\n  fp16: true",
        [(15, "train.batch_size", "did you mean batch.global?"), (16, "train.fp16", "did you mean precision?")],
    ),
    ("epochs: 2", "epochs: 2\n  learning_rate:", [(15, "train.learning_rate", "leave it out for its default")]),
    (
        "epochs: 2",
        "epochs: 2\n  activation_checkpointing: true",
        [(15, "train.activation_checkpointing", "write 1 for every block, 2 for every second one")],
    ),
    ("epochs: 2", "epochs: 2\n  freeze_encoder: yes", [(15, "train.freeze_encoder", "write true or false")]),
    ("epochs: 2", "epochs: 2\n  betas: [0.9, 1.5]", [(15, "train.betas", "")]),
    ("epochs: 2", "max_steps: 3.0", [(14, "train.max_steps", "write 3")]),
    ("epochs: 2", "epochs: 2\n  max_steps: 5", [(14, "train.epochs,train.max_steps", "keep one of them")]),
    ("epochs: 2", "epochs: 2\n  schedule: cosin", [(15, "train.schedule", "did you mean cosine?")]),
    ("epochs: 2", "epochs: 2\n  schedule: {function: f}", [(15, "train.schedule.function", "")]),
    (
        "epochs: 2",
        "epochs: 2\n  optimizer: {function: 'a:f', elementwize: true}",
        [(15, "train.optimizer.elementwize", "did you mean elementwise?")],
    ),
    ("epochs: 2", "epochs: 2\n  freeze: {block: 2}", [(15, "train.freeze.block", "did you mean blocks?")]),
    ("epochs: 2", "epochs: 2\n  freeze: 2", [(15, "train.freeze", "")]),
    ("epochs: 2", "epochs: 2\n  epochs: 3", [(15, "", "keep one of them")]),
    ("epochs: 2", "epochs 2\n  seed: 1", [(14, "", "write epochs: 2")]),
    ("epochs: 2", "epochs: 2\n    seed: 1", [(15, "", "")]),
    ("epochs: 2", "epochs: 2\n\tseed: 1", [(15, "", "")]),
    ("train:\n  epochs: 2\n", "", [(None, "train.epochs,train.max_steps", "")]),
    ("train:\n  epochs: 2\n", "train:\n", [(13, "train.epochs,train.max_steps", "")]),
    ("train:\n  epochs: 2\n", "train: epochs 2\n", [(13, "train", "did you mean epochs: 2?")]),
    ("train:\n  epochs: 2\n", "trian:\n  epochs: 2\n", [(13, "trian", "did you mean train?")]),
    ("global: 32", "global: 32\n  per_device: 4", [(16, "batch.global,batch.per_device", "keep one of them")]),
    ("global: 32", "globl: 32", [(16, "batch.globl", "did you mean global?")]),
    ("global: 32", "micro_batch_size: 4", [(15, "batch.global,batch.per_device", "")]),
    ("global: 32", "global: 32\n  micro_batch_size: big", [(17, "batch.micro_batch_size", "")]),
    ("global: 32", "global: true", [(16, "batch.global", "")]),
    ("kind: classification", "kind: clasification", [(2, "task.kind", "did you mean classification?")]),
    ("kind: classification", "kind: sst", [(2, "task.kind", "did you mean sst2?")]),
    ("kind: classification", "kind: regression", [(3, "task.labels", "has it (task.kind: classification)")]),
    ("  kind: classification\n", "", [(1, "task.kind", "")]),
    ("[negative, positive]", "[true, false]", [(3, "task.labels", "put true in quotes")]),
    ("[negative, positive]", "[only]", [(3, "task.labels", "at least 2 are needed")]),
    ("[negative, positive]", "{0: bad, 1: 2}", [(3, "task.labels", "")]),
    ("  labels: [negative, positive]\n", "", [(1, "task.labels", "")]),
    ("task:\n  kind: classification\n  labels: [negative, positive]\n", "", [(None, "task.kind", "")]),
    ("task:\n  kind: classification\n  labels: [negative, positive]\n", "task: [classification]\n", [(1, "task", "")]),
    ("    label: label\n", "", [(6, "data.columns.label,data.columns,data", "")]),
    ("    label: label\n", "    label: 2.5\n", [(8, "data.columns.label", "put it in quotes")]),
    ("    text: sentence\n", "    txt: sentence\n", [(7, "data.columns.txt", "did you mean text?")]),
    ("    text: sentence\n", "    text: label\n", [(7, "data.columns.text,data.columns.label", "")]),
    (
        "  train: train.csv\n",
        "  train: [a.csv, ./a.csv]\n  label: y\n",
        [(5, "data.train", ""), (6, "data.label", "did you mean data.columns.label?")],
    ),
    ("    validation: 0.2", "    validation: 1.5", [(10, "data.split.validation", "")]),
    ("    validation: 0.2", "    validation: 0.6\n    test: 0.5", [(10, "data.split.validation,data.split.test", "")]),
    ("    validation: 0.2", "    folds: 5", [(10, "data.split.fold,data.split.folds", "")]),
    (
        "name: some-model",
        "name: some-model\n  weight_decay: 0.1",
        [(13, "model.weight_decay", "did you mean train.weight_decay?")],
    ),
    ("name: some-model", "nmae: some-model", [(12, "model.nmae", "did you mean name?")]),
    ("model:\n  name: some-model\n", "model: some-model\n", [(11, "model", "")]),
    ("name: some-model", "name: some-model\n  adapter: {kind: lora, rank: 0}", [(13, "model.adapter.rank", "")]),
    ("name: some-model", "name: some-model\n  adapter: {rank: 8}", [(13, "model.adapter.kind", "")]),
    (
        "name: some-model",
        "name: some-model\n  tokenizer_revision: v1",
        [(13, "model.tokenizer_revision,model.tokenizer", "")],
    ),
    ("", "strategy: fsdp\n", [(17, "strategy.kind", "zero3 here")]),
    (
        "",
        "strategy: {kind: single, bucket_cap_mb: 3}\n",
        [(17, "strategy.bucket_cap_mb", "has it (strategy.kind: ddp)")],
    ),
    (
        "",
        "strategy: {kind: pipeline, stages: 4, balance: [2, 2]}\nprecision: fp8\n",
        [(17, "strategy.balance,strategy.stages", ""), (18, "precision", "")],
    ),
    ("", "strategy: {kind: zero3, param_dtype: bf16}\n", [(17, "strategy.param_dtype,precision", "")]),
    (
        "",
        "strategy: {kind: deepspeed, stage: 5}\nrun: {nam: x}\n",
        [(17, "strategy.stage", ""), (18, "run.nam", "did you mean name?")],
    ),
    (
        "",
        "evaluate:\n  best: acuracy\n  min_delta: 0.1\n  steps: 5\n",
        [
            (18, "evaluate.best,task.kind", "did you mean accuracy?"),
            (19, "evaluate.min_delta,evaluate.patience", ""),
            (20, "evaluate.steps,evaluate.every", ""),
        ],
    ),
    (
        "",
        "evaluate:\n  metrics:\n  - {name: x, higher_is_better: true}\n  - {name: Y, functon: 'a:f'}\n",
        [
            (20, "evaluate.metrics[1].functon", "did you mean function?"),
            (20, "evaluate.metrics[1].name", ""),
            (20, "evaluate.metrics[1].higher_is_better", ""),
        ],
    ),
    (
        "",
        "evaluate:\n  metrics: {name: x}\nrun:\n  callbacks: [{function: 3}]\n",
        [(18, "evaluate.metrics", ""), (20, "run.callbacks[0].function", "")],
    ),
    (
        "",
        "distil:\n  teacher: a\n  weigth: 0.5\n  distance: kld\n",
        [(19, "distil.weigth", "did you mean weight?"), (20, "distil.distance", "did you mean kl?")],
    ),
    (
        "",
        "trackers: {mlflow: {url: x}, wandb: {mode: onlin}}\n1: 2\n",
        [
            (17, "trackers.mlflow.url", "did you mean uri?"),
            (17, "trackers.wandb.mode", "did you mean online?"),
            (18, "1", ""),
        ],
    ),
    (
        "",
        "baseline: tfid\nmeasure: {log_every: 0, sample_every_s: .nan}\n",
        [
            (17, "baseline.kind", "did you mean tfidf?"),
            (18, "measure.log_every", ""),
            (18, "measure.sample_every_s", ""),
        ],
    ),
    ("", "checkpoint: {every: steps}\nextends: gone.yaml\n", [(18, "", "")]),
]
"""A piece of the valid configuration (none: its end), what replaces it, and the problems of the result."""


@pytest.mark.parametrize(("piece", "instead", "problems"), BROKEN)
def test_all_problems_are_found_with_their_lines_keys_and_hints(good, good_text, piece, instead, problems):
    assert not piece or good_text.count(piece) == 1
    good.write_text(good_text.replace(piece, instead) if piece else good_text + instead)
    with pytest.raises(ConfigError) as caught:
        load_config(good)
    found = [(fault.facts["line"], ",".join(fault.facts["keys"])) for fault in caught.value.faults]
    assert found == [(line, keys) for line, keys, _ in problems]
    for fault, (_, _, hint) in zip(caught.value.faults, problems, strict=True):
        assert hint in fault.message
