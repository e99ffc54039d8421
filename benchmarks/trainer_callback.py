"""Cost of `paratune.hf.PhaseCallback` per step of a Trainer: the same training with and without it, in turn.

    OMP_NUM_THREADS=1 python benchmarks/trainer_callback.py
    OMP_NUM_THREADS=1 python benchmarks/trainer_callback.py --rounds 3      # a short run

Each round trains both sides once from the same weights, in an order that alternates. A step is timed from the end of
the first 5 steps to the end of the last step, by CPU time of the process and by the wall clock. Both sides must end
with the same weights: that they do the same work is checked.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import machine_lines
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from paratune.hf import PhaseCallback

NUM_WARMUP = 5
WORDS = 1000
SIZES = ((2, 32, 8, 16), (2, 128, 16, 64))
"""Layers, width, rows of a batch, tokens of a row."""


class Times(TrainerCallback):
    """Reads both clocks after the warm-up and after the last step."""

    def __init__(self, num_steps: int) -> None:
        self._ends = (NUM_WARMUP, num_steps)
        self.read: list[tuple[float, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self._ends:
            self.read.append((time.process_time(), time.perf_counter()))

    def step_ms(self) -> tuple[float, float]:
        """Return CPU time and wall time of a step in milliseconds."""
        (cpu, wall), (cpu_end, wall_end) = self.read
        num_steps = self._ends[1] - self._ends[0]
        return 1000 * (cpu_end - cpu) / num_steps, 1000 * (wall_end - wall) / num_steps


def train(model: torch.nn.Module, rows: list[Any], batch: int, num_steps: int, folder: Path | None) -> Any:
    """Train a copy of the model; return its weights and the times of a step.

    Args:
        folder: Run folder of PhaseCallback; None to train without it.
    """
    times = Times(num_steps)
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=batch,
            max_steps=num_steps,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        callbacks = [times] if folder is None else [PhaseCallback(folder), times]
        trainer = Trainer(copy.deepcopy(model), arguments, train_dataset=rows, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return trainer.model.state_dict(), times.step_ms()


def spread(values: list[float]) -> str:
    """Return median, p10 and p90."""
    tenths = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):.3f} ({tenths[0]:.3f} to {tenths[-1]:.3f})"


def measure(size: tuple[int, int, int, int], num_rounds: int, num_steps: int) -> None:
    """Print the table of a model."""
    layers, width, batch, length = size
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        intermediate_size=4 * width,
        max_position_embeddings=length,
    )
    model = BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(WORDS, (length,)), "attention_mask": torch.ones(length), "labels": number % 2}
        for number in range(8 * batch)
    ]
    step_times: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for number in range(num_rounds):
        weights = {}
        for side in sorted(step_times, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder, "run") if side == "with" else None
                weights[side], times = train(model, rows, batch, num_steps, run)
            step_times[side].append(times)
        for name, values in weights["with"].items():
            assert torch.equal(values, weights["without"][name]), name
    print(f"\n### {layers} layers of width {width}, {batch} x {length} tokens\n")
    print("| clock | ms a step without | with | more, paired | share |\n| --- | --- | --- | --- | --- |")
    for place, clock in enumerate(("CPU time", "wall")):
        without, measured = ([times[place] for times in step_times[side]] for side in ("without", "with"))
        more = [right - left for left, right in zip(without, measured, strict=True)]
        share = statistics.median(more) / statistics.median(without)
        print(f"| {clock} | {spread(without)} | {spread(measured)} | {spread(more)} | {share:.2%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=45)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    print("\n".join(machine_lines()))
    print(f"\n{arguments.rounds} rounds; {arguments.steps - NUM_WARMUP} measured steps of each side in a round.")
    print("Median (p10 to p90) over the rounds; the weights of both sides are equal after each round.")
    for size in SIZES:
        measure(size, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
