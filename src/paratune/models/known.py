"""Shapes of published encoders, for plans where their config.json is not at hand; no weights, no network.

Each is what the config.json of the model on the hub says, as far as it differs from the defaults of its architecture in
transformers; figures of sizes are also in the papers (Devlin et al. 2019, Liu et al. 2019, Sanh et al. 2019, Lan et al.
2020, Clark et al. 2020, He et al. 2021 and 2023, Warner et al. 2024, Souza et al. 2020).
"""

from typing import Any

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
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
    "albert-base-v2": {
        "model_type": "albert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "google/electra-base-discriminator": {
        "model_type": "electra",
        "embedding_size": 768,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "microsoft/deberta-v3-base": {"model_type": "deberta-v2", **_DEBERTA, "hidden_size": 768, "num_hidden_layers": 12,
                                  "num_attention_heads": 12, "intermediate_size": 3072},
    "microsoft/deberta-v3-large": {"model_type": "deberta-v2", **_DEBERTA, **_LARGE},
    "microsoft/deberta-v2-xlarge": {"model_type": "deberta-v2", **_DEBERTA, **_CONVOLUTION, "hidden_size": 1536,
                                    "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144},
    "answerdotai/ModernBERT-base": {"model_type": "modernbert"},
    "answerdotai/ModernBERT-large": {"model_type": "modernbert", "hidden_size": 1024, "intermediate_size": 2624,
                                     "num_hidden_layers": 28, "num_attention_heads": 16},
}  # fmt: skip
_OWNERS = ("google-bert/", "distilbert/", "FacebookAI/", "albert/")
"""Of models that the hub also has without a name in front."""


def known_config(name: str) -> Any | None:
    """Return the configuration of a published model by its name on the hub, or None."""
    owner = next((each for each in _OWNERS if name.startswith(each)), "")
    shape = SHAPES.get(name.removeprefix(owner))
    if shape is None:
        return None
    from transformers import AutoConfig

    return AutoConfig.for_model(**shape)
