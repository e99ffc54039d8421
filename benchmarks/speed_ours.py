"""Train or evaluate with paratune, and print the time of the steps: paratune's side of `speed.py`, in its own process.

Usage: python speed_ours.py SETTINGS.json, as written by speed.py, or one such path a line on stdin; the result is one
JSON object on the last line. The commands are those of a user, `paratune train` and the function behind `paratune
evaluate`; only a callback at the end of each step is added.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Run, and return times and facts of the run."""
    return _evaluate(settings) if settings["evaluates"] else _train(settings)


def _train(settings: dict[str, Any]) -> dict[str, Any]:
    import torch
    import yaml
    from step_watch import NUM_PROFILED, StepWatch

    from paratune.config.load import load_config
    from paratune.engine.recorder import Recorder
    from paratune.records import read_events
    from paratune.training.run import train

    first, last = settings["num_warmup_steps"], settings["num_warmup_steps"] + settings["num_steps"]
    watch, recorded = StepWatch(first, settings["num_steps"]), Recorder.step

    def step(self: Recorder, **values: Any) -> None:
        recorded(self, **values)
        watch.after_step(values["step"])

    Recorder.step = step  # type: ignore[method-assign]
    path = Path(settings["folder"]) / "speed.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    num_steps = last + (NUM_PROFILED if torch.cuda.is_available() else 0)
    path.write_text(yaml.safe_dump(config(settings, num_steps)), encoding="utf-8")
    try:
        train(load_config(path, []), mode="overwrite")
    finally:
        Recorder.step = recorded  # type: ignore[method-assign]
    run = Path(settings["folder"]) / "run"
    steps = [event for event in read_events(run) if event["event"] == "step" and first < event["step"] <= last]
    saved = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return {
        **watch.times,
        "dropout": [saved["hidden_dropout_prob"], saved["attention_probs_dropout_prob"]],
        "num_tokens": sum(event["num_tokens"] for event in steps),
        "num_padded_tokens": sum(event["num_padded_tokens"] for event in steps),
        "batch": record["batch"],
    }


def config(settings: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Return the configuration of a training."""
    tasks: dict[str, dict[str, Any]] = {
        "classification": {"kind": "classification", "labels": [0, 1]},
        "qa": {"kind": "qa", "stride": settings["stride"], "null_threshold": 0.0},
        "mlm": {"kind": "mlm", "windows": "documents"},
    }
    layout = {"layout": settings["layout"]} if settings["layout"] else {}
    return {
        "run": {"name": "run", "folder": settings["folder"], "seed": settings["seed"]},
        "task": tasks[settings["kind"]],
        "data": {
            "train": settings["file"],
            "columns": settings["columns"],
            "max_length": settings["max_length"],
            "cache_dir": settings["cache"],
        },
        "model": {"name": settings["model_folder"]},
        "train": {"max_steps": num_steps},
        "batch": {"global": settings["batch_size"], **layout},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
        "precision": settings["precision"],
        "measure": {"warmup_steps": settings["num_warmup_steps"]},
    }


def _evaluate(settings: dict[str, Any]) -> dict[str, Any]:
    from step_watch import now

    from paratune.api.apply import apply
    from paratune.data.read import read_table
    from paratune.infer.trained import NamedColumns, load_trained

    columns = {**dict.fromkeys(("text_pair", "answer_start")), **settings["columns"]}
    trained = load_trained(settings["model_folder"], NamedColumns(**columns), "auto")
    table = read_table(settings["file"])
    few = trained.read("warm-up", table.slice(0, settings["batch_size"]), require_labels=True)
    whole = trained.read(settings["file"], table, require_labels=True)
    apply(trained, few, settings["batch_size"])
    begin = now()
    evaluation = apply(trained, whole, settings["batch_size"])
    end = now()
    saved = trained.model.hf.config
    return {
        "cpu_s": end[0] - begin[0],
        "wall_s": end[1] - begin[1],
        "dropout": [saved.hidden_dropout_prob, saved.attention_probs_dropout_prob],
        "num_tokens": int(whole.store.num_tokens),
        "num_rows": len(evaluation.outputs),
    }


if __name__ == "__main__":
    for path in sys.argv[1:] or map(str.strip, sys.stdin):
        print(json.dumps(main(json.loads(Path(path).read_text(encoding="utf-8")))), flush=True)
