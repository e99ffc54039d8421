"""LoRA on demo:sentences with the base in float32, nf4 and int8: score, loss, bytes of the weights, time.

    OMP_NUM_THREADS=1 python benchmarks/quantized_base.py FOLDER [--steps 40] [--seeds 1]

The runs of a seed differ only in `model.quantize_base`. Prints a table in Markdown. A run that is finished in FOLDER is
not trained again.
"""

import argparse
from pathlib import Path

from machine import machine_lines

import paratune
from paratune.records import RUN_FILE, SUMMARY_FILE, read_json

CONFIG = Path(__file__).parents[1] / "configs/quickstart/single.yaml"


def main() -> None:
    """Train what is missing, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for seed in range(1, options.seeds + 1):
        for base in (None, "nf4", "int8"):
            name = f"{base}_{seed}"
            changes = {
                "model.adapter": {"kind": "lora", "rank": 8, "target_modules": "all-linear"},
                "model.quantize_base": base,
                "train.learning_rate": 1e-3,
                "train.epochs": None,
                "train.max_steps": options.steps,
                "run.seed": seed,
                "run.folder": str(options.folder),
                "measure.plan": False,
            }
            if not (options.folder / name / SUMMARY_FILE).is_file():
                paratune.train(CONFIG, changes, run_name=name, resume=True)
            model, summary = (
                read_json(options.folder / name / RUN_FILE)["model"],
                read_json(options.folder / name / SUMMARY_FILE),
            )
            scores, train_s = summary["scores"]["validation"], summary["time"]["train_s"]
            rows.append(
                f"| {seed} | {base or 'float32'} | {model['size_bytes'] / 1e6:.1f} | {scores['accuracy']:.4f} | "
                f"{scores['loss']:.4f} | {train_s:.1f} |"
            )
    print("\n".join(machine_lines()))
    print("\n| seed | base | weights, MB | accuracy | loss | training, s |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
