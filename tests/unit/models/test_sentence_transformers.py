"""Files of sentence-transformers: what is written is read again, and modules that are not supported are refused."""

import json

import pytest
import torch
from raised import raises_code
from tiny import tiny_config, tiny_tokenizer
from transformers import BertModel

from paratune.config.task_sections import EmbeddingTask
from paratune.models.embedding import embedding
from paratune.models.save import SentenceModules, read_modules, save_model, write_modules
from paratune.models.task_model import TaskModel, trial_batch

TEXTS = ["the film is good", "a very poor book, not a good one at all"]


def test_a_folder_is_read_as_it_was_written(tmp_path):
    assert read_modules(tmp_path) is None
    modules = SentenceModules("cls", True, 32)
    write_modules(tmp_path, modules, width=8)
    assert read_modules(tmp_path) == modules


# As sentence-transformers 6.2.0 saves all-MiniLM-L6-v2, and as the folder was published with version 2.0.0.
@pytest.mark.parametrize(
    ("transformer", "pooling"),
    [
        ("base.modules.transformer.Transformer", {"pooling_mode": "mean", "include_prompt": True}),
        ("models.Transformer", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}),
    ],
)  # fmt: skip
def test_folders_of_old_and_new_versions_are_read(tmp_path, transformer, pooling):
    types = [f"sentence_transformers.{transformer.replace('Transformer', name)}" for name in ("Transformer", "Pooling")]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": name} for name in types]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 8, **pooling}))
    assert read_modules(tmp_path) == SentenceModules("mean", False, None)


@pytest.mark.parametrize(
    ("types", "pooling", "value"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode": ["mean", "max"]}, "max"),
        (["Transformer", "Pooling"], {"pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        (["WordEmbeddings"], {}, "WordEmbeddings"),
        ([None], {}, "damaged"),
    ],
)
def test_other_modules_are_refused(tmp_path, types, pooling, value):
    entries = [{"type": f"sentence_transformers.models.{name}"} if name else {} for name in types]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with raises_code("model.unsupported", value, source=tmp_path):
        read_modules(tmp_path)


@pytest.mark.slow  # importing sentence-transformers takes several seconds
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_sentence_transformers_computes_the_same_vectors(tmp_path, pooling, normalize):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    task = EmbeddingTask(kind="embedding", pooling=pooling, normalize=normalize)
    hf = BertModel(tiny_config(dropout=0.0), add_pooling_layer=False)
    model, tokenizer = TaskModel(hf, "embedding", objective=embedding(task)).eval(), tiny_tokenizer()
    tensors = {f"hf.{name}": tensor for name, tensor in hf.state_dict().items()}
    save_model(tmp_path / "model", model, tokenizer, tensors, {"task": task.model_dump(), "max_length": 12})
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert theirs.max_seq_length == 12
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=12, return_tensors="pt")
    batch = trial_batch(encoded["input_ids"], encoded["attention_mask"], row_size=1)
    with torch.no_grad():
        ours = model.row_outputs(model(batch), batch)
    assert torch.allclose(torch.from_numpy(theirs.encode(TEXTS)), ours, atol=1e-6)
