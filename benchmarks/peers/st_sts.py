"""Trains a model of sentence-transformers on scored pairs, and prints its scores as JSON; run by `embeddings.py`."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset
from scipy import stats
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([train(job, seed) for seed in job["seeds"]]))


def train(job: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the steps, and the scores on the test rows before and after training."""
    encoder = Transformer(job["model"], max_seq_length=job["max_length"])
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), "mean")], device="cpu")
    before = scores(model, job["files"]["test"])
    rows = pq.read_table(job["files"]["train"]).to_pydict()
    columns = {name: rows[name] for name in ("sentence1", "sentence2")}
    data = Dataset.from_dict({**columns, "score": [score / 5 for score in rows["score"]]})
    options = SentenceTransformerTrainingArguments(
        output_dir=job["output"],
        num_train_epochs=job["epochs"],
        per_device_train_batch_size=job["batch"],
        learning_rate=job["learning_rate"],
        weight_decay=job["weight_decay"],
        warmup_steps=job["warmup_steps"],
        seed=seed,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=options, train_dataset=data, loss=CosineSimilarityLoss(model)
    )
    trainer.train()
    return {"num_steps": trainer.state.global_step, "before": before, "scores": scores(model, job["files"]["test"])}


def scores(model: SentenceTransformer, path: str) -> dict[str, float]:
    rows: dict[str, Any] = pq.read_table(path).to_pydict()
    vectors = [model.encode(rows[name], normalize_embeddings=True) for name in ("sentence1", "sentence2")]
    cosines = (vectors[0] * vectors[1]).sum(axis=1)
    return {
        "spearman": float(stats.spearmanr(cosines, rows["score"]).statistic),
        "pearson": float(stats.pearsonr(cosines, rows["score"]).statistic),
    }


if __name__ == "__main__":
    main()
