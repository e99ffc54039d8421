"""Set-ups with faults of the model: its files, its tokenizer, its precision, its size."""

import json

from broken_setups.changes import edit_json, restore
from set_ups import GPU, T4, Case, on_site, with_gpus


def absent_model(set_up):
    set_up.set("model.name", str(set_up.folder / "modle"))


def lfs_pointer(set_up):
    path = set_up.model / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n")


def cut_weights(set_up):
    path = set_up.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def html_config(set_up):
    (set_up.model / "config.json").write_text("<!DOCTYPE html><html>403 Forbidden</html>")


def lost_shard(set_up):
    (set_up.model / "model.safetensors").rename(set_up.model / "model-00001-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (set_up.model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def pickled(set_up):
    (set_up.model / "model.safetensors").rename(set_up.model / "pytorch_model.bin")


def no_tokenizer(set_up):
    for path in set_up.model.glob("*token*"):
        path.unlink()


def no_vocabulary(set_up):
    for path in set_up.model.glob("*token*"):
        path.unlink()
    (set_up.model / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def changed_since(set_up):
    record = {"files": {"config.json": {"num_bytes": 1, "sha256": "0"}}}
    (set_up.model / "paratune.json").write_text(json.dumps(record))


def unchanged_again(set_up):
    (set_up.model / "paratune.json").unlink()


def other_tokenizer(set_up):
    edit_json(set_up.model / "config.json", vocab_size=40)


def own_code(set_up):
    edit_json(set_up.model / "config.json", auto_map={"AutoModel": "modeling.Mine"})


def offline_hub(set_up):
    set_up.set("model.name", "someone/never-downloaded-model")
    set_up.environ["HF_HUB_OFFLINE"] = "1"


def hostile(set_up, kind="deberta-v2", gpu=GPU):
    with_gpus(set_up, 1, gpu)
    set_up.set("precision", "fp16")
    edit_json(set_up.model / "config.json", model_type=kind, decoder_start_token_id=0)


def no_decoder_start(set_up):
    edit_json(set_up.model / "config.json", model_type="t5")


def bf16_on_t4(set_up):
    with_gpus(set_up, 1, T4)
    set_up.set("precision", "bf16")


def bf16_on_old_processor(set_up):
    set_up.node["cpu_flags"] = ["avx2"]
    set_up.set("precision", "bf16")


def fp16_without_gpu(set_up):
    set_up.set("precision", "fp16")


def huge_model(set_up):
    with_gpus(set_up, 4, {**GPU, "memory_bytes": 100_000})


def hub_model_without_internet(set_up):
    on_site(set_up, no_network=True).set("model.name", "someone/never-downloaded-model")


def t4_site(set_up):
    on_site(set_up, gpu_type="t4").set("precision", "bf16")


CASES = [
    Case(
        "model_absent",
        "OSError: ... is not a local folder and is not a valid model identifier",
        absent_model,
        after=lambda s: s.set("model.name", str(s.model)),
    ),
    Case(
        "model_damaged",
        "cloned without git-lfs: header too large",
        lfs_pointer,
        line="git lfs pull",
        after=lambda s: restore(s),
    ),
    Case("model_damaged", "an interrupted download: MetadataIncompleteBuffer", cut_weights, after=lambda s: restore(s)),
    Case("model_damaged", "a proxy's page was saved as config.json", html_config, after=lambda s: restore(s)),
    Case("model_incomplete", "a shard of the weights is missing", lost_shard, after=lambda s: restore(s)),
    Case(
        "model_pickle",
        "transformers#37785: torch.load of a .bin is refused (CVE-2025-32434)",
        pickled,
        after=lambda s: restore(s),
    ),
    Case("tokenizer_absent", "Can't load tokenizer for ...", no_tokenizer, after=lambda s: restore(s)),
    Case(
        "tokenizer_unusable",
        "accuracy 0.49 instead of 1.0: the tokenizer has no word of the texts",
        no_vocabulary,
        after=lambda s: restore(s),
    ),
    Case("model_damaged", "a file of a saved model has changed since", changed_since, after=unchanged_again),
    Case(
        "vocabulary",
        "device-side assert: a tokenizer with more tokens than embeddings",
        other_tokenizer,
        after=lambda s: restore(s),
    ),
    Case(
        "model_code",
        "requires you to execute the configuration file in that repo",
        own_code,
        line="model.trust_remote_code: true",
    ),
    Case(
        "decoder_start",
        "AttributeError: 'T5Config' object has no attribute 'decoder_start_token_id'",
        no_decoder_start,
        line="model.overrides: {decoder_start_token_id: 0}",
    ),
    Case(
        "cache_absent",
        "peft#1452: HF_HUB_OFFLINE on a node without the model",
        offline_hub,
        after=lambda s: s.set("model.name", str(s.model)),
        level="problem",
    ),
    Case("fp16_model", "microsoft/DeBERTa#77: NaN in fp16", hostile, line="precision: bf16"),
    Case(
        "fp16_model",
        "transformers#24116: mDeBERTa in fp16 learned nothing, on a GPU without bf16",
        lambda s: hostile(s, gpu=T4),
        line="precision: fp32",
    ),
    Case("fp16_model", "transformers#4586: T5 overflows in fp16", lambda s: hostile(s, "t5"), line="precision: bf16"),
    Case("precision_gpu", "bf16 on a T4, which has no units for it", bf16_on_t4, line="precision: fp16"),
    Case("bf16_device", "bf16 on a processor without units for it", bf16_on_old_processor, line="precision: fp32"),
    Case("precision_cpu", "addmm_impl_cpu_ not implemented for 'Half'", fp16_without_gpu, line="precision: fp32"),
    Case(
        "states_too_large", "caikit-nlp#226: out of memory in the first step", huge_model, line="strategy.kind: zero3"
    ),
    Case(
        "cache_absent",
        "evaluate#567: compute nodes that cannot reach the hub",
        hub_model_without_internet,
        after=lambda s: s.set("model.name", str(s.model)),
        level="problem",
    ),
    Case("precision_gpu", "bf16 on a partition of T4", t4_site, line="precision: fp16"),
]
