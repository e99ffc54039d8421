"""Named entities: paratune and Trainer's run_ner recipe, with the same settings, over several seeds.

The data are generated here (no licence is needed): the words around a name decide whether it is a person, organisation
or place; some names occur only in the test set. Usage: python benchmarks/ner.py FOLDER --seeds 1 2 3
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
NAMES = ["Marta", "Lund", "Keller", "Ito", "Novak", "Silva", "Adler", "Brandt", "Costa", "Dahl", "Eriksen", "Faber"]
NEW_NAMES = ["Gruber", "Holm", "Jansen", "Kovac", "Moreau", "Okafor"]
"""Names that occur only in the test set, for half of the entities."""
FRAMES = {
    "PER": ["{} said on Monday that prices fell", "the doctor {} left early", "they thanked {} for the help"],
    "ORG": ["shares of {} rose again", "{} hired fifty engineers", "the bank lent money to {}"],
    "LOC": ["it rained in {} all week", "the road to {} is closed", "a train from {} was late"],
}
SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "learning_rate": 1e-4,
    "batch": 16,
    "weight_decay": 0.01,
    "max_length": 64,
    "warmup_steps": 0,
}


def sentences(count: int, seed: int, *, with_new: bool) -> str:
    """Return sentences in CoNLL format."""
    draw, blocks = random.Random(seed), []
    for _ in range(count):
        lines = []
        for kind in draw.choices(list(FRAMES), k=draw.randint(1, 2)):
            names = draw.choices(NEW_NAMES if with_new and draw.random() < 0.5 else NAMES, k=draw.randint(1, 2))
            for word in draw.choice(FRAMES[kind]).split():
                if word == "{}":
                    lines += [f"{name} {'I' if place else 'B'}-{kind}" for place, name in enumerate(names)]
                else:
                    lines.append(f"{word} O")
            lines.append(". O")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def by_trainer(folder: Path, model: Path, seed: int) -> dict[str, Any]:
    """Train with transformers' Trainer."""
    files = {split: str(folder / f"{split}.conll") for split in ("train", "test")}
    path = folder / f"trainer_{seed}.json"
    path.write_text(json.dumps({**SETTINGS, "model": str(model), "labels": LABELS, "files": files, "seed": seed}))
    completed = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "peers" / "hf_ner.py"), str(path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(completed.stdout.strip().split("\n")[-1])
    return result


def by_paratune(folder: Path, model: Path, seed: int) -> dict[str, Any]:
    """Train with paratune."""
    config = {
        "run": {"name": f"seed{seed}", "folder": str(folder / "runs"), "seed": seed},
        "task": {"kind": "token_classification", "labels": LABELS},
        "data": {
            **{split: str(folder / f"{split}.conll") for split in ("train", "test")},
            "max_length": SETTINGS["max_length"],
            "cache_dir": str(folder / "cache"),
        },
        "model": {"name": str(model)},
        "train": {key: SETTINGS[key] for key in ("epochs", "learning_rate", "weight_decay", "warmup_steps")},
        "batch": {"global": SETTINGS["batch"]},
        "device": "cpu",
    }
    path = folder / f"seed{seed}.yaml"
    path.write_text(json.dumps(config))
    subprocess.run([sys.executable, "-m", "paratune", "train", str(path)], check=True, capture_output=True)
    summary = json.loads((folder / "runs" / f"seed{seed}" / "summary.json").read_text())
    return {"num_steps": summary["num_steps"], "scores": summary["scores"]["test"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of an encoder, such as demo:minilm's")
    parser.add_argument("--learning-rate", type=float, default=SETTINGS["learning_rate"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    SETTINGS["learning_rate"] = options.learning_rate
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed, with_new in (("train", 600, 0, False), ("test", 300, 1, True)):
        (folder / f"{name}.conll").write_text(sentences(count, seed, with_new=with_new), encoding="utf-8")
    print("| tool | seed | steps | F1 | accuracy | loss |\n|---|---|---|---|---|---|")
    for name, train in (("Trainer", by_trainer), ("paratune", by_paratune)):
        results = [train(folder, options.model.resolve(), seed) for seed in options.seeds]
        for seed, result in zip(options.seeds, results, strict=True):
            scores = result["scores"]
            print(f"| {name} | {seed} | {result['num_steps']} | {scores['f1']:.4f} | {scores['accuracy']:.4f} | "
                  f"{scores['loss']:.4f} |", flush=True)  # fmt: skip
        f1 = [result["scores"]["f1"] for result in results]
        print(f"| {name} | mean (s.d.) | | {statistics.fmean(f1):.4f} ({statistics.stdev(f1):.4f}) | | |", flush=True)


if __name__ == "__main__":
    main()
