"""Accuracy of the estimated gradient noise scale, relative to the gradients of single samples, by division of a step.

    python benchmarks/noise_scale.py [--epochs 1000]

A tiny BERT learns `demo:sentences` for a few steps. Then its weights stay fixed, and the gradient of each of 256
sentences is computed, without dropout. The norms of the gradients of all micro-batches follow from the products of
these gradients, so thousands of steps can be simulated with paratune's order, distribution to ranks, and estimator.
"""

import argparse
import csv
import io
import math
import platform
import zlib
from importlib import resources

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertConfig, BertForSequenceClassification

from paratune.data.order import deal, epoch_order
from paratune.records.efficiency import noise_estimates

NUM_SAMPLES, BATCH, VOCABULARY = 256, 32, 2000
CASES = ((1, 2, 16), (1, 4, 8), (2, 1, 16), (2, 4, 4), (4, 1, 8), (4, 2, 4), (8, 1, 4))
"""Ranks, micro-batches of a step on each rank, and samples of a micro-batch."""
Floats = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    num_epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = read_sentences(NUM_SAMPLES)
    model = trained_model(texts)
    gradients = torch.stack([gradient_of(model, ids, label) for ids, label in texts])
    products = (gradients.double() @ gradients.double().T).numpy()
    lengths = np.array([len(ids) for ids, _ in texts])
    of_population = products.sum() / NUM_SAMPLES**2
    trace = np.trace(products) / NUM_SAMPLES - of_population
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.processor() or platform.machine()}, one thread; {versions}\n")
    print(f"tr(Sigma) {trace:.4g}, |G|^2 {of_population:.4g}, noise scale {trace / of_population:.4g} samples;")
    share = explained_by_length(gradients.double().numpy(), lengths) / trace
    print(f"{100 * share:.1f}% of tr(Sigma) is between sentences of different lengths; {num_epochs:,} epochs\n")
    # The samples of a step are all different, so E(G_i G_j) = |G|^2 - S^2 / N with S^2 = tr(Sigma) N / (N - 1).
    share = trace / (NUM_SAMPLES - 1) / of_population
    print("Estimates as parts of the true values, mean and standard error over epochs.")
    print(f"Expected without replacement: tr(Sigma) {NUM_SAMPLES / (NUM_SAMPLES - 1):.3f}, |G|^2 {1 - share:.3f}\n")
    print(
        "| ranks | micro-batches of a rank | samples of a micro-batch | tr(Sigma) | squared norm of G | noise scale |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for case in CASES:
        traces, norms = simulate(products, lengths, case, num_epochs)
        ratios = [text(values / true) for values, true in ((traces, trace), (norms, of_population))]
        scale = traces.mean() / norms.mean() / (trace / of_population)
        print(f"| {case[0]} | {case[1]} | {case[2]} | {ratios[0]} | {ratios[1]} | {scale:.3f} |")


def text(values: Floats) -> str:
    """Return the mean over epochs with its standard error."""
    return f"{values.mean():.3f} ± {values.std(ddof=1) / math.sqrt(len(values)):.3f}"


def read_sentences(count: int) -> list[tuple[list[int], int]]:
    """Return token ids and label of each sentence; a word is a token by its checksum.

    Three quarters of the sentences have one label, so that the mean gradient is not close to 0.
    """
    source = resources.files("paratune").joinpath("demo/sentences.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(source, newline="")))
    sentences = []
    for label, name in enumerate(sorted({row["label"] for row in rows})):
        num_rows = count - count // 4 if label == 0 else count // 4
        for row in [row for row in rows if row["label"] == name][:num_rows]:
            words = (3 + zlib.crc32(word.encode()) % (VOCABULARY - 3) for word in row["sentence"].lower().split())
            sentences.append(([1, *words, 2][:64], label))
    return sentences


def loss_of(model: BertForSequenceClassification, ids: list[int], label: int) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), labels=torch.tensor([label])).loss


def trained_model(texts: list[tuple[list[int], int]]) -> BertForSequenceClassification:
    """Return a model after 3 steps of Adam on 8 sentences each."""
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    generator = np.random.default_rng(1)
    for _ in range(3):
        optimizer.zero_grad()
        for at in generator.choice(len(texts), 8, replace=False):
            (loss_of(model, *texts[at]) / 8).backward()
        optimizer.step()
    return model


def gradient_of(model: BertForSequenceClassification, ids: list[int], label: int) -> torch.Tensor:
    """Return the gradient of one sentence over all weights, (P,)."""
    model.zero_grad(set_to_none=True)
    loss_of(model, ids, label).backward()
    parts = (torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters())
    return torch.cat([part.flatten() for part in parts])


def explained_by_length(gradients: Floats, lengths: npt.NDArray[np.int64]) -> float:
    """Return the part of tr(Sigma) between the means of sentences of equal length.

    Minus the part expected by chance for the same number of groups.
    """
    mean = gradients.mean(axis=0)
    between = within = 0.0
    groups = [gradients[lengths == length] for length in np.unique(lengths)]
    for group in groups:
        between += len(group) * float(((group.mean(axis=0) - mean) ** 2).sum())
        within += float(((group - group.mean(axis=0)) ** 2).sum())
    by_chance = (len(groups) - 1) * within / (len(gradients) - len(groups))
    return max(0.0, between - by_chance) / len(gradients)


def simulate(
    products: Floats, lengths: npt.NDArray[np.int64], case: tuple[int, int, int], num_epochs: int
) -> tuple[Floats, Floats]:
    """Return the mean estimates of tr(Sigma) and |G|^2 of each epoch, (num_epochs,) each."""
    ranks, micro_steps, size = case
    means = []
    for epoch in range(num_epochs):
        order = epoch_order(len(lengths), 7, epoch)
        estimates = []
        for start in range(0, len(order), BATCH):
            indices = order[start : start + BATCH]
            parts = [
                part
                for rank in range(ranks)
                for part in deal(
                    indices, lengths[indices], data_rank=rank, data_world_size=ranks, micro_batch_size=size,
                    num_micro_steps=micro_steps,
                )
            ]  # fmt: skip
            estimate = noise_estimates(
                float(products[np.ix_(indices, indices)].sum()) / BATCH**2,
                sum(float(products[np.ix_(part, part)].sum()) for part in parts) / BATCH**2,
                sum((len(part) / BATCH) ** 2 for part in parts),
                BATCH,
            )
            assert estimate is not None
            estimates.append(estimate)
        means.append(np.mean(estimates, axis=0))
    return np.array(means)[:, 0], np.array(means)[:, 1]


if __name__ == "__main__":
    main()
