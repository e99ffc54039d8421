"""Shapes of published models, for plans without their config.json; no weights, no network.

A shape has the values of the config.json on the hub that differ from the defaults of the architecture in transformers.
Sources of the sizes: Devlin et al. 2019, Liu et al. 2019, Sanh et al. 2019, Lan et al. 2020, Clark et al. 2020, He et
al. 2021 and 2023, Warner et al. 2024, Souza et al. 2020; for Portuguese models and decoders, Santos et al. 2024
(arXiv:2403.01897), Lopes et al. 2024 (2402.12969), BigScience 2022 (2211.05100), Shliazhko et al. 2022 (2204.07580) and
Touvron et al. 2023 (2307.09288).

Three shapes are less certain: GlórIA is GPT-Neo 1.3B with its vocabulary; Carvalho is FLOR-1.3B (BLOOM with 50,257
tokens), from which its training continued; AiBERTa is BERT-base with 20,000 tokens.
"""

from typing import Any

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DEBERTA = {
    "vocab_size": 128100,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": -1,
}
_XLARGE = {"hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144}
_CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}
SHAPES: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {"model_type": "bert"},
    "bert-base-cased": {"model_type": "bert", "vocab_size": 28996},
    "bert-base-multilingual-cased": {"model_type": "bert", "vocab_size": 119547},
    "bert-large-uncased": {"model_type": "bert", **_LARGE},
    "bert-large-cased": {"model_type": "bert", "vocab_size": 28996, **_LARGE},
    "neuralmind/bert-base-portuguese-cased": {"model_type": "bert", "vocab_size": 29794},
    "neuralmind/bert-large-portuguese-cased": {"model_type": "bert", "vocab_size": 29794, **_LARGE},
    "distilbert-base-uncased": {"model_type": "distilbert"},
    "distilbert-base-cased": {"model_type": "distilbert", "vocab_size": 28996},
    "roberta-base": {"model_type": "roberta", **_ROBERTA},
    "roberta-large": {"model_type": "roberta", **_ROBERTA, **_LARGE},
    "xlm-roberta-base": {"model_type": "xlm-roberta", **_ROBERTA, "vocab_size": 250002},
    "xlm-roberta-large": {"model_type": "xlm-roberta", **_ROBERTA, "vocab_size": 250002, **_LARGE},
    "albert-base-v2": {"model_type": "albert", **_BASE},
    "google/electra-base-discriminator": {"model_type": "electra", "embedding_size": 768, **_BASE},
    "microsoft/deberta-v3-base": {"model_type": "deberta-v2", **_DEBERTA, **_BASE, "num_hidden_layers": 12},
    "microsoft/deberta-v3-large": {"model_type": "deberta-v2", **_DEBERTA, **_LARGE},
    "microsoft/deberta-v2-xlarge": {"model_type": "deberta-v2", **_DEBERTA, **_CONVOLUTION, **_XLARGE,
                                    "num_hidden_layers": 24},
    "microsoft/deberta-v2-xxlarge": {"model_type": "deberta-v2", **_DEBERTA, **_CONVOLUTION, **_XLARGE,
                                     "num_hidden_layers": 48},
    "microsoft/deberta-base": {"model_type": "deberta", "vocab_size": 50265, "type_vocab_size": 0,
                               "relative_attention": True, "position_biased_input": False,
                               "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1},
    "answerdotai/ModernBERT-base": {"model_type": "modernbert"},
    "answerdotai/ModernBERT-large": {"model_type": "modernbert", "hidden_size": 1024, "intermediate_size": 2624,
                                     "num_hidden_layers": 28, "num_attention_heads": 16},
    "AiBERTa": {"model_type": "bert", "vocab_size": 20000},
    "EleutherAI/gpt-neo-1.3B": {"model_type": "gpt_neo"},
    "meta-llama/Llama-2-7b-hf": {"model_type": "llama", "max_position_embeddings": 4096},
    "bigscience/bloom-1b1": {"model_type": "bloom", "vocab_size": 250880, "hidden_size": 1536, "n_layer": 24,
                             "n_head": 16},
    "bigscience/bloomz-7b1": {"model_type": "bloom", "vocab_size": 250880, "hidden_size": 4096, "n_layer": 30,
                              "n_head": 32},
    "ai-forever/mGPT": {"model_type": "gpt2", "vocab_size": 100000, "n_positions": 2048, "n_embd": 2048, "n_layer": 24,
                        "n_head": 16},
    "Nos-PT/Carvalho_pt-gl-1.3B": {"model_type": "bloom", "vocab_size": 50257, "hidden_size": 2048, "n_layer": 24,
                                   "n_head": 16},
}  # fmt: skip
_SAME_SHAPE = {
    "PORTULAN/albertina-100m-portuguese-{}-encoder": "microsoft/deberta-base",
    "PORTULAN/albertina-900m-portuguese-{}-encoder": "microsoft/deberta-v2-xlarge",
    "PORTULAN/albertina-1b5-portuguese-{}-encoder": "microsoft/deberta-v2-xxlarge",
    "PORTULAN/gervasio-7b-portuguese-{}-decoder": "meta-llama/Llama-2-7b-hf",
    "NOVA-vision-language/GlorIA-1.3B": "EleutherAI/gpt-neo-1.3B",
}
SHAPES |= {name.format(variety): SHAPES[base] for name, base in _SAME_SHAPE.items() for variety in ("ptpt", "ptbr")}
_OWNERS = ("google-bert/", "distilbert/", "FacebookAI/", "albert/")
"""Owners whose models are also in `SHAPES` without the owner."""


def known_config(name: str) -> Any | None:
    """Return the configuration of a published model by its name on the hub, or None."""
    owner = next((prefix for prefix in _OWNERS if name.startswith(prefix)), "")
    shape = SHAPES.get(name.removeprefix(owner))
    if shape is None:
        return None
    from transformers import AutoConfig

    return AutoConfig.for_model(**shape)
