"""Set-ups with wrong options, run folders, trackers or loaders."""

import shutil

from set_ups import Case, on_site, with_gpus


def misspelt(set_up):
    set_up.config["train"]["learning_rte"] = set_up.config["train"].pop("learning_rate")


def finished_run(set_up):
    folder = set_up.folder / "runs" / "run"
    folder.mkdir(parents=True)
    for name in ("run.json", "summary.json"):
        (folder / name).write_text("{}")


def foreign_folder(set_up):
    folder = set_up.folder / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("x")


def unfinished_run(set_up):
    folder = set_up.folder / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")


def torn_checkpoint(set_up):
    (set_up.folder / "runs" / "run" / "checkpoints" / "step_000200").mkdir(parents=True)
    set_up.probes |= {"run_state": None, "damaged_checkpoint": "step_000200"}


def without_package(set_up):
    set_up.set("trackers.wandb", {})
    set_up.missing.add("wandb")


def deepspeed_missing(set_up):
    with_gpus(set_up, 2).set("strategy", {"kind": "deepspeed", "stage": 2})
    set_up.missing.add("deepspeed")


def long_warmup(set_up):
    set_up.set("train.warmup_steps", 500)


def any_order_on_a_cpu(set_up):
    set_up.set("train.deterministic", False)


def evaluated_never(set_up):
    set_up.set("evaluate", {"every": "steps", "steps": 5000})


def loaders(set_up):
    set_up.set("data.num_workers", 64)


def wandb_online(set_up):
    on_site(set_up, no_network=True).set("trackers.wandb", {"mode": "online"})


CASES = [
    Case("config", "unsloth#10452: an unknown option was ignored without a warning", misspelt),
    Case("run_exists", "LlamaFactory: the output folder is not empty", finished_run),
    Case("run_foreign", "runs that overwrote a folder with other files", foreign_folder),
    Case(
        "checkpoint_damaged",
        "transformers#35782: resumed from an incomplete checkpoint",
        torn_checkpoint,
        after=lambda s: s.probes.update(damaged_checkpoint=None),
    ),
    Case("extra_missing", "a tracker that was not installed stopped the run", without_package),
    Case(
        "extra_missing",
        "accelerate#1830: DeepSpeed is not installed",
        deepspeed_missing,
    ),
    Case("order_of_sums", "a GPU setting without effect on the CPU", any_order_on_a_cpu),
    Case(
        "never_due",
        "transformers#28134: the schedule of a short run never warmed up",
        long_warmup,
    ),
    Case(
        "never_due",
        "load_best_model_at_end with eval_steps larger than the steps of the run",
        evaluated_never,
        level="problem",
    ),
    Case("too_many_workers", "64 loader processes on 32 cores", loaders, line="data.num_workers: 31"),
    Case(
        "tracker_online",
        "wandb#4217: nodes without a network waited for the server indefinitely",
        wandb_online,
        line="trackers.wandb.mode: offline",
    ),
    Case(
        "run_unfinished",
        "restarted without --resume, after hours in the queue",
        unfinished_run,
        after=lambda s: shutil.rmtree(s.folder / "runs"),
    ),
]
