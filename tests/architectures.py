"""Small models of all architectures that the documentation names, and rows: `from architectures import CONFIGS`.

Expected values are those of the same model on the padded batch.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tiny import VOCABULARY

from paratune.batch import Batch
from paratune.models.task_model import TaskModel

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 600,
}
MODERN = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "cls_token_id": 3, "sep_token_id": 4}
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "bert": lambda: transformers.BertConfig(**SIZES),
    "roberta": lambda: transformers.RobertaConfig(**SIZES, type_vocab_size=1),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZES, type_vocab_size=1),
    "camembert": lambda: transformers.CamembertConfig(**SIZES, type_vocab_size=1),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=len(VOCABULARY), dim=32, hidden_dim=64, n_layers=2, n_heads=2, max_position_embeddings=600
    ),
    "electra": lambda: transformers.ElectraConfig(**SIZES, embedding_size=16),
    "albert": lambda: transformers.AlbertConfig(**SIZES, embedding_size=16),
    "ernie": lambda: transformers.ErnieConfig(**SIZES),
    "data2vec-text": lambda: transformers.Data2VecTextConfig(**SIZES),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES, **MODERN, global_attn_every_n_layers=2, local_attention=6, classifier_pooling="cls"
    ),
    "modernbert-mean": lambda: transformers.ModernBertConfig(
        **SIZES, **MODERN, global_attn_every_n_layers=2, local_attention=6, classifier_pooling="mean"
    ),
    "deberta-v2": lambda: transformers.DebertaV2Config(
        **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm"
    ),
    "deberta-v3": lambda: transformers.DebertaV2Config(
        **SIZES,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=256,
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    ),
    "xlm-roberta-xl": lambda: transformers.XLMRobertaXLConfig(**SIZES, type_vocab_size=1),
    "roberta-prelayernorm": lambda: transformers.RobertaPreLayerNormConfig(**SIZES),
    "jina-v3": lambda: transformers.JinaEmbeddingsV3Config(**SIZES),
    "eurobert": lambda: transformers.EuroBertConfig(
        **SIZES,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
        mask_token_id=4,
        classifier_pooling="bos",
    ),
    "esm": lambda: transformers.EsmConfig(**SIZES, pad_token_id=1, mask_token_id=2, token_dropout=False),
    "esm-rotary": lambda: transformers.EsmConfig(
        **SIZES, pad_token_id=1, mask_token_id=2, token_dropout=False, position_embedding_type="rotary"
    ),
}
"""Architectures that support packed rows, at least on the CPU."""
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64},
    "gpt_neo": {
        "hidden_size": 16,
        "num_layers": 3,
        "num_heads": 2,
        "max_position_embeddings": 64,
        "window_size": 8,
        "attention_types": [[["global", "local", "global"], 1]],
    },
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    },
    "bloom": {"hidden_size": 16, "n_layer": 3, "n_head": 2},
}
"""Sizes of decoders by model type."""
PADDED: dict[str, dict[str, Any]] = {
    "mpnet": SIZES,
    "convbert": {**SIZES, "embedding_size": 32},
    "megatron-bert": SIZES,
    "deberta": {
        **SIZES,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "summary_type": "first"},
    **DECODERS,
}
"""Sizes by model type of architectures that do not support packed rows."""
WITHOUT_QUESTIONS = ("eurobert", "esm", "esm-rotary")
"""Architectures for which Transformers has no head for question answering."""
HEADS = {
    "classification": transformers.AutoModelForSequenceClassification,
    "mlm": transformers.AutoModelForMaskedLM,
    "qa": transformers.AutoModelForQuestionAnswering,
}
PAIRS = [(name, kind) for name in CONFIGS for kind in HEADS if (kind, name in WITHOUT_QUESTIONS) != ("qa", True)]
"""Architectures, each with each of its heads."""


def model_of(config: transformers.PretrainedConfig, kind: str, dtype: torch.dtype = torch.float32) -> TaskModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return TaskModel(HEADS[kind].from_config(copy.deepcopy(config)).to(dtype), kind)


def rows(lengths: list[int], kind: str, *, pad: int = 0) -> Batch:
    random = torch.Generator().manual_seed(sum(lengths))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 100, mask.shape, generator=random).where(mask > 0, pad)
    labels, places = torch.tensor([row % 2 for row in range(len(lengths))]), None
    if kind == "qa":
        labels = torch.tensor([[0, length - 1] for length in lengths])
    if kind == "mlm":
        labels = ids.where((mask > 0) & (ids % 3 == 0), -100)
        labels[:, 0] = 9
        places = (labels.flatten() >= 0).nonzero().squeeze(1)
    return Batch(
        input_ids=ids,
        row_weight=torch.ones(len(lengths)),
        index=torch.arange(len(lengths)),
        num_samples=len(lengths),
        num_tokens=sum(lengths),
        num_padded_tokens=ids.numel(),
        loss_denominator=1.0,
        attention_mask=mask,
        max_seqlen=max(lengths),
        labels=labels,
        label_places=places,
    )
