"""Each architecture that the documentation names trains with its own kind of tokenizer, as transformers reads it.

Expected values: transformers' own tokenizer and model on the saved folder; PEFT's for adapters.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import CONFIGS, PADDED
from tokenizer_kinds import own_tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from paratune.config.sections import LoraOptions, ModelOptions, Train
from paratune.config.task_sections import ClassificationTask
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import Collator, PackedCollator
from paratune.data.tokens import tokenize
from paratune.engine.optim import OptimizerFactory
from paratune.models.packed import enable_packed_batches
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.tasks import make_recipe

TEXTS = [
    "the film was good and the story",
    "a poor book , never again",
    "it is fine",
    "MKTAYIAKQR",
    "Great , NICE film",
]
RECIPE = make_recipe(ClassificationTask(kind="classification", labels=["bad", "fine", "good"]))
ROWS = np.arange(len(TEXTS))


def load(options: ModelOptions, tokenizer: Any, seed: int = 0) -> TaskModel:
    model = RECIPE.load_model(options, tokenizer, POLICIES["fp32"], seed=seed)
    enable_packed_batches(model)
    return model


def take_two_steps(model: TaskModel, collator: Any) -> torch.Tensor:
    """Return the logits after them, without dropout."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    factory = OptimizerFactory(Train(learning_rate=0.01, schedule="constant"), 2)
    optimizer = factory([(name, p) for name, p in model.named_parameters() if p.requires_grad])
    for step in range(2):
        batch = collator(ROWS, float(len(ROWS)))
        model.train()
        model.loss_sum(model(batch), batch).backward()
        factory.set_learning_rate(step)
        optimizer.step()
        optimizer.zero_grad()
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert all(p.isfinite().all() for p in model.parameters())
    assert set(changed) <= {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(changed) > 3
    return logits(model, collator)


@torch.no_grad()
def logits(model: TaskModel, collator: Any) -> torch.Tensor:
    return model.eval()(collator(ROWS, float(len(ROWS))))


@torch.no_grad()
def logits_of_transformers(folder: Path) -> torch.Tensor:
    encoded = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    return AutoModelForSequenceClassification.from_pretrained(folder).eval()(**encoded).logits


def save(folder: Path, model: TaskModel, tokenizer: Any, base: Path | None = None) -> ModelOptions:
    whole = model.state_dict()  # with persistent buffers; of tied weights one each
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in whole]
    weights = {name: whole[name].clone() for name in names}
    about, base_model = ({}, None) if base is None else ({"base_model": str(base)}, str(base))
    save_model(folder, model, tokenizer, weights, about, adapter_base_model=base_model)
    return ModelOptions(name=str(folder))


@pytest.mark.parametrize("name", [*CONFIGS, *PADDED])
def test_an_architecture_trains_and_is_the_same_in_transformers(tmp_path: Path, name: str):
    config = CONFIGS[name]() if name in CONFIGS else AutoConfig.for_model(name, **PADDED[name])
    start = tmp_path / "start"
    config.save_pretrained(start)
    own_tokenizer(config.model_type, TEXTS, start).save_pretrained(start)
    options = ModelOptions(name=str(start), tokenizer=str(start), from_scratch=True)
    tokenizer = load_tokenizer(options)
    model = load(options, tokenizer)
    assert (model.entry is not None) == (name in CONFIGS)
    samples = Samples(TEXTS, None, ROWS % 3, None, ROWS, None, {})
    collator: Any = Collator(
        tokenize(samples, TokenizeOptions(tokenizer, 64, cache_dir=tmp_path)), samples.labels, tokenizer.pad_token_id
    )
    collator = collator if model.entry is None else PackedCollator(collator)
    trained = take_two_steps(model, collator)
    saved = save(tmp_path / "saved", model, tokenizer)
    torch.testing.assert_close(logits_of_transformers(tmp_path / "saved"), trained, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(load(saved, load_tokenizer(saved)), collator), trained, rtol=1e-4, atol=1e-5)
    pytest.importorskip("peft")
    adapted = load(saved.model_copy(update={"adapter": LoraOptions(kind="lora", rank=2)}), tokenizer)
    torch.testing.assert_close(logits(adapted, collator), trained, rtol=1e-4, atol=1e-5)  # LoRA's second matrix is 0
    with_adapter = take_two_steps(adapted, collator)
    merged = save(tmp_path / "merged", adapted, tokenizer)
    torch.testing.assert_close(logits_of_transformers(tmp_path / "merged"), with_adapter, rtol=1e-4, atol=1e-5)
    for other in (merged, save(tmp_path / "adapter", adapted, tokenizer, tmp_path / "saved")):
        torch.testing.assert_close(logits(load(other, tokenizer, 1), collator), with_adapter, rtol=1e-4, atol=1e-5)
