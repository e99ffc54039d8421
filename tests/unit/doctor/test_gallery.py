"""A gallery of broken set-ups, each from a complaint of real users: it is caught with its own code, and the line that
the finding gives repairs it. Healthy set-ups raise no alarm."""

import json
import os
import re
import shutil
import socket
import struct
import time
from pathlib import Path

import pytest
from set_ups import (
    GPU,
    STORAGE,
    T4,
    Case,
    SetUp,
    in_slurm,
    is_run,
    make_files,
    on_site,
    rows,
    sentence,
    sound,
    with_gpus,
)
from tiny import tiny_model

from paratune.config.load import load_config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import traits_of
from paratune.doctor.probe import port_is_free

MIXED_TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tNV4\tSYS\t0-15\t0\tN/A
GPU1\tSYS\t X \tSYS\tNV4\t16-31\t1\tN/A
GPU2\tNV4\tSYS\t X \tSYS\t0-15\t0\tN/A
GPU3\tSYS\tNV4\tSYS\t X \t16-31\t1\tN/A
"""
NVLINK_TOPOLOGY = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\t0-31\t0
GPU1\tNV18\t X \t0-31\t0
"""


def edit_json(path: Path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def labelled(set_up: SetUp, name: str, labels: dict[str, str]) -> None:
    set_up.csv(name, [{**row, "label": labels[row["label"]]} for row in rows(80)])


# ---- what breaks: options


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
    set_up.probes["tools"] = {}


def deepspeed_missing(set_up):
    with_gpus(set_up, 2).set("strategy", {"kind": "deepspeed", "stage": 2})
    set_up.versions["deepspeed"] = None


def long_warmup(set_up):
    set_up.set("train.warmup_steps", 500)


def evaluated_never(set_up):
    set_up.set("evaluate", {"every": "steps", "steps": 5000})


# ---- what breaks: files


def renamed_file(set_up):
    (set_up.folder / "data" / "train.csv").rename(set_up.folder / "data" / "trainn.csv")


def capital_column(set_up):
    set_up.csv("train.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(80)])
    set_up.csv("validation.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(20, 1000)])
    set_up.csv("test.csv", [{"Text": row["text"], "label": row["label"]} for row in rows(20, 2000)])


def id_as_text(set_up):
    for name, first in (("train", 0), ("validation", 1000), ("test", 2000)):
        set_up.csv(f"{name}.csv", [{"uid": f"t{first + n:05d}", **row} for n, row in enumerate(rows(40, first))])
    set_up.set("data.columns.text", "uid")


def numbers_as_text(set_up):
    for name, first in (("train", 0), ("validation", 1000), ("test", 2000)):
        set_up.csv(f"{name}.csv", [{"idx": first + n, **row} for n, row in enumerate(rows(40, first))])
    set_up.set("data.columns.text", "idx")


def capital_labels(set_up):
    for name in ("train", "validation", "test"):
        labelled(set_up, f"{name}.csv", {"negative": "Negative", "positive": "Positive"})
    only_train(set_up)


def only_train(set_up):
    set_up.set("data.validation", None)
    set_up.set("data.test", None)


def third_label(set_up):
    set_up.csv("train.csv", [*rows(80), {"text": sentence(900), "label": "neutral"}])


def scores_as_classes(set_up):
    only_train(set_up)
    set_up.csv("train.csv", [{"text": row["text"], "label": n / 7} for n, row in enumerate(rows(80))])


def absent_label(set_up):
    set_up.set("task.labels", ["negative", "positive", "neutral"])


def other_label_order(set_up):
    edit_json(
        set_up.model / "config.json",
        id2label={"0": "positive", "1": "negative"},
        label2id={"positive": 0, "negative": 1},
    )


def index_as_target(set_up):
    only_train(set_up)
    set_up.config["task"] = {"kind": "regression"}
    set_up.set("data.columns.label", "index")
    set_up.csv("train.csv", [{"text": row["text"], "index": n, "score": n % 7} for n, row in enumerate(rows(80))])


def empty_texts(set_up):
    set_up.csv("train.csv", [*rows(80), {"text": "", "label": "negative"}])


def same_test(set_up):
    set_up.set("data.test", set_up.config["data"]["validation"])


def copied_test(set_up):
    shutil.copy(set_up.folder / "data" / "validation.csv", set_up.folder / "data" / "test.csv")


def validation_is_train(set_up):
    set_up.set("data.validation", set_up.config["data"]["train"])


def leaked(set_up):
    set_up.csv("test.csv", [*rows(10), *rows(10, 2000)])


def conflicting(set_up):
    set_up.csv("train.csv", [*rows(40), *({**row, "label": "negative"} for row in rows(40))])


def too_short(set_up):
    set_up.set("data.max_length", 8)


def large_batch(set_up):
    set_up.set("batch.global", 4096)


def few_rows(set_up):
    with_gpus(set_up, 8)
    set_up.csv("train.csv", rows(4))


def rare_class(set_up):
    set_up.set("evaluate.best", "accuracy")
    set_up.csv("train.csv", [{**row, "label": "positive" if n == 0 else "negative"} for n, row in enumerate(rows(80))])


def bad_answers(set_up):
    only_train(set_up)
    set_up.config["task"] = {"kind": "qa", "stride": 8}
    set_up.config["data"]["columns"] = {"text": "q", "text_pair": "c", "label": "a", "answer_start": "s", "id": None}
    good = [{"q": f"what is {n}", "c": sentence(n), "a": sentence(n).split()[1], "s": 0} for n in range(20)]
    for row in good:
        row["s"] = row["c"].index(row["a"])
    good[3]["s"] = 999
    set_up.csv("train.csv", good)


def scores_as_text(set_up):
    only_train(set_up)
    set_up.csv("train.csv", [{**row, "score": n % 5} for n, row in enumerate(rows(80))])
    set_up.set("data.columns.text", "score")


# ---- what breaks: the model


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
    edit_json(set_up.model / "config.json", model_type=kind)


def bf16_on_t4(set_up):
    with_gpus(set_up, 1, T4)
    set_up.set("precision", "bf16")


def fp16_without_gpu(set_up):
    set_up.set("precision", "fp16")


def huge_model(set_up):
    with_gpus(set_up, 4, {**GPU, "memory_bytes": 100_000})


# ---- what breaks: the start


def pipeline_of_three(set_up):
    with_gpus(set_up, 3)
    set_up.set("strategy", {"kind": "pipeline", "stages": 2})


def odd_batch(set_up):
    with_gpus(set_up, 3)
    set_up.set("batch.global", 32)


def two_processes_of_single(set_up):
    set_up.nproc = 2


def cuda_on_cpu(set_up):
    set_up.set("device", "cuda")


def slurm(**values):
    def change(set_up):
        in_slurm(set_up, **values)

    return change


def srun_forgotten(set_up):
    in_slurm(set_up, nodes=2)
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        del set_up.environ[name]


def no_srun(set_up):
    in_slurm(set_up, nodes=2)
    set_up.probes["tools"] = {name: path for name, path in set_up.probes["tools"].items() if name != "srun"}


def with_environ(gpus=2, nodes=1, **environ):
    def change(set_up):
        in_slurm(set_up, nodes=nodes, gpus=gpus) if nodes > 1 else with_gpus(set_up, gpus)
        set_up.environ |= environ

    return change


def taken_port(set_up):
    with_environ(MASTER_ADDR="127.0.0.1", MASTER_PORT="29777")(set_up)
    set_up.probes["port_is_free"] = lambda port: port != 29777


# ---- what breaks: room, versions, devices


def with_probes(gpus=0, **values):
    def change(set_up):
        if gpus:
            with_gpus(set_up, gpus)
        set_up.probes |= values

    return change


def cpu_adam(set_up, missing):
    with_gpus(set_up, 2).set("strategy", {"kind": "deepspeed", "offload_optimizer": True, "cpu_adam": True})
    set_up.probes["tools"] = {name: path for name, path in set_up.probes["tools"].items() if name != missing}


def got(tool):
    def change(set_up):
        set_up.probes["tools"] = {**set_up.probes["tools"], tool: "/usr/bin/it"}

    return change


def old_nvcc(set_up):
    cpu_adam(set_up, "none")
    set_up.probes["nvcc"] = "11.8"


def nccl_twice(set_up):
    with_gpus(set_up, 2)
    set_up.versions |= {"nvidia-nccl-cu12": "2.21.5", "nvidia-nccl-cu13": "2.27.7"}


def mixed_gpus(set_up):
    with_gpus(set_up, 2)
    set_up.node["gpus"][1] = dict(T4)


def killed_build(set_up):
    lock = set_up.folder / "ext" / "py311" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200, time.time() - 7200))
    set_up.environ["TORCH_EXTENSIONS_DIR"] = str(set_up.folder / "ext")
    set_up.machine_checks = True


def small_disk(set_up):
    set_up.probes["run_storage"] = {**STORAGE, "free_bytes": 3_000_000}
    edit_json(set_up.model / "config.json")
    set_up.set("checkpoint", {"keep": 20})


def loaders(set_up):
    set_up.set("data.num_workers", 64)


def wandb_online(set_up):
    on_site(set_up, no_network=True).set("trackers.wandb", {"mode": "online"})


def never_saved(set_up):
    on_site(set_up, time_limit_s=8 * 3600.0).set("checkpoint.every", "never")


def hub_model_without_internet(set_up):
    on_site(set_up, no_network=True).set("model.name", "someone/never-downloaded-model")


def wrong_site(kind, option, line):
    def change(set_up):
        on_site(set_up, unfit=((kind, option, "it is not there", line),))

    return change


def t4_site(set_up):
    on_site(set_up, gpu_type="t4").set("precision", "bf16")


CASES = [
    Case("config", "unsloth#10452: an option that was not known was dropped in silence", misspelt),
    Case("run_exists", "LlamaFactory: the output folder is not empty", finished_run),
    Case("run_foreign", "runs that wrote over a folder of other files", foreign_folder),
    Case(
        "checkpoint_damaged",
        "transformers#35782: resumed from a checkpoint that was not whole",
        torn_checkpoint,
        after=lambda s: s.probes.update(damaged_checkpoint=None),
    ),
    Case(
        "extra_missing", "a tracker that was not installed ended the run", without_package, after=got("package wandb")
    ),
    Case(
        "extra_missing",
        "accelerate#1830: DeepSpeed is not installed",
        deepspeed_missing,
        after=lambda s: s.versions.update(deepspeed="0.19.8"),
    ),
    Case(
        "warmup_too_long",
        "transformers#28134: the schedule of a short run never warmed up",
        long_warmup,
        after=lambda s: (s.set("train.warmup_steps", None), s.overrides.append("train.warmup_ratio=0.1")),
    ),
    Case("never_due", "load_best_model_at_end with eval_steps above the steps of the run", evaluated_never),
    Case("data_file", "FileNotFoundError after hours in the queue", renamed_file),
    Case(
        "data_column",
        "transformers#27618: KeyError for a column that is spelt otherwise",
        capital_column,
        line="data.columns.text: Text",
    ),
    Case(
        "text_is_id",
        "an id column was used as the text: it learned the ids by heart",
        id_as_text,
        line="data.columns.text: text",
    ),
    Case("text_is_id", "an index was used as the text", numbers_as_text, line="data.columns.text: text"),
    Case(
        "label_unknown",
        "transformers#13334: labels whose names differ in case",
        capital_labels,
        line="task.labels: [Negative, Positive]",
    ),
    Case(
        "label_unknown",
        "CUDA device-side assert: a label that the head does not have",
        third_label,
        line="task.labels: [negative, neutral, positive]",
    ),
    Case(
        "label_unknown",
        "numbers were learned as classes",
        scores_as_classes,
        line="task: {kind: regression}",
        after=lambda s: s.config.update(task={"kind": "regression"}),
    ),
    Case(
        "label_absent",
        "num_labels=3 for a file of two labels",
        absent_label,
        after=lambda s: s.set("task.labels", ["negative", "positive"]),
    ),
    Case(
        "label_order",
        "transformers#10401: MNLI at 4.3% and not 90.6%, for ids that were swapped",
        other_label_order,
        line="task.labels: [positive, negative]",
    ),
    Case(
        "label_is_index",
        "the column idx of GLUE was taken for the target",
        index_as_target,
        after=lambda s: s.set("data.columns.label", "score"),
    ),
    Case(
        "missing_values",
        "transformers#25054: rows without a text ended the run",
        empty_texts,
        line="data.missing: drop",
    ),
    Case("test_is_validation", "the test set was the validation set", same_test, line="data.test: null"),
    Case("test_is_validation", "the test file was a copy of the validation file", copied_test),
    Case(
        "test_is_train",
        "evaluated on the training set",
        validation_is_train,
        after=lambda s: (s.set("data.validation", None), s.set("data.split", {"validation": 0.1})),
    ),
    Case(
        "parts_overlap",
        "rows of the test set among those of training",
        leaked,
        after=lambda s: s.csv("test.csv", rows(20, 2000)),
    ),
    Case("label_conflict", "the same text with both labels", conflicting, after=lambda s: s.csv("train.csv", rows(80))),
    Case("truncated", "essays cut off at 128 tokens without a word", too_short),
    Case("batch_too_large", "a batch larger than the data: one step an epoch", large_batch),
    Case("too_few_rows", "DistributedSampler padded 4 rows to 8 ranks (pytorch#25162)", few_rows),
    Case("accuracy_of_rare", "98% accuracy by always answering no", rare_class, line="evaluate.best: f1_macro"),
    Case(
        "missing_values",
        "transformers#8710: answers that do not stand at their place",
        bad_answers,
        line="data.missing: drop",
    ),
    Case("data_value", "a column of scores was named as the text", scores_as_text, line="data.columns.text: text"),
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
    Case(
        "model_damaged", "a download that broke off: MetadataIncompleteBuffer", cut_weights, after=lambda s: restore(s)
    ),
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
    Case("bf16_device", "bf16 on a T4: no units for it", bf16_on_t4, line="precision: fp16"),
    Case("fp16_cpu", "addmm_impl_cpu_ not implemented for 'Half'", fp16_without_gpu, line="precision: fp32"),
    Case(
        "states_too_large", "caikit-nlp#226: out of memory in the first step", huge_model, line="strategy.kind: zero3"
    ),
    Case("world_size", "transformers#37129: a pipeline of two stages on three ranks", pipeline_of_three),
    Case(
        "world_size",
        "two processes that each trained the whole run",
        two_processes_of_single,
        line="strategy.kind: ddp",
    ),
    Case("batch_share", "Lightning#3953: a batch that three GPUs cannot share", odd_batch, line="batch.global: 33"),
    Case("no_gpu", "No CUDA GPUs are available on the login node's configuration", cuda_on_cpu, line="device: auto"),
    Case(
        "tasks_over_gpus",
        "NCCL: Duplicate GPU detected: --ntasks-per-node=8 on 4 GPUs",
        slurm(SLURM_NTASKS_PER_NODE="8", SLURM_NTASKS="8"),
        line="#SBATCH --ntasks-per-node=4",
        after=lambda s: s.environ.update(SLURM_NTASKS_PER_NODE="4"),
    ),
    Case(
        "gpus_idle",
        "mila-docs#414: three of four GPUs stood idle",
        slurm(SLURM_NTASKS_PER_NODE="2", SLURM_NTASKS="2"),
        line="#SBATCH --ntasks-per-node=4",
        after=lambda s: s.environ.update(SLURM_NTASKS_PER_NODE="4"),
    ),
    Case(
        "visible_too_few",
        "invalid device ordinal: CUDA_VISIBLE_DEVICES left over from a try",
        with_environ(CUDA_VISIBLE_DEVICES="0"),
    ),
    Case(
        "visible_twice",
        "CUDA_VISIBLE_DEVICES=0,0 shows no GPU",
        with_environ(CUDA_VISIBLE_DEVICES="0,0"),
        after=lambda s: s.environ.update(CUDA_VISIBLE_DEVICES="0,1"),
    ),
    Case(
        "srun_forgotten",
        "accelerate#2816: I forgot srun",
        srun_forgotten,
        after=lambda s: s.environ.update(SLURM_STEP_ID="0", SLURM_PROCID="0"),
    ),
    Case(
        "node_rank",
        "accelerate#2816: $SLURM_NODEID was 0 on every node",
        lambda s: in_slurm(s, nodes=2, SLURM_NODEID="1", SLURM_PROCID="1", NODE_RANK="0"),
        after=lambda s: s.environ.update(NODE_RANK="1"),
    ),
    Case("no_srun", "accelerate#1239: started outside of Slurm", no_srun, after=got("srun")),
    Case(
        "rank_differs",
        "accelerate#1489: two processes with the same rank",
        slurm(
            gpus=1,
            nodes=2,
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="2",
            SLURM_PROCID="1",
            LOCAL_WORLD_SIZE="1",
            SLURM_NODEID="1",
        ),
        after=lambda s: [s.environ.pop(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in s.environ],
    ),
    Case("launcher_variables", "RANK was left over in the shell", lambda s: s.environ.update(RANK="3")),
    Case(
        "interface",
        "Lightning#17228: NCCL_SOCKET_IFNAME of another cluster",
        with_environ(NCCL_SOCKET_IFNAME="bond0"),
        line="export NCCL_SOCKET_IFNAME=eth0",
    ),
    Case("interface", "gloo: Unable to find address for: eno1", with_environ(GLOO_SOCKET_IFNAME="eno1")),
    Case(
        "master_is_local",
        "accelerate#1645: MASTER_ADDR=localhost on two nodes",
        with_environ(nodes=2, MASTER_ADDR="localhost", MASTER_PORT="31234"),
    ),
    Case(
        "master_unknown",
        "DeepSpeed#2025: the head node's name did not resolve",
        lambda s: (
            with_environ(nodes=2, MASTER_ADDR="gpu[01-02]", MASTER_PORT="31234")(s),
            s.probes.update(resolve=lambda name: ["10.0.0.1"] if name == "node1" else []),
        ),
    ),
    Case("port_taken", "EADDRINUSE: another job's port", taken_port),
    Case("port_wrong", "MASTER_PORT=auto", with_environ(MASTER_ADDR="127.0.0.1", MASTER_PORT="auto")),
    Case(
        "port_shared",
        "accelerate#647: two jobs on one node met on 29500",
        with_environ(nodes=2, MASTER_ADDR="node1", MASTER_PORT="29500"),
    ),
    Case(
        "nccl_switched_off",
        "a hang was once worked around, and NVLink unused since",
        with_environ(NCCL_P2P_DISABLE="1"),
    ),
    Case("launch_blocking", "CUDA_LAUNCH_BLOCKING was left on: 3 times slower", with_environ(CUDA_LAUNCH_BLOCKING="1")),
    Case(
        "run_folder_local",
        "checkpoints on /tmp of the first node were gone after the requeue",
        lambda s: (in_slurm(s, nodes=2), s.probes.update(run_storage={**STORAGE, "filesystem": "ext4", "kind": "ssd"})),
        after=lambda s: s.probes.update(run_storage=STORAGE),
    ),
    Case(
        "checkpoint_room",
        "No space left on device while saving (DeepSpeed#2921)",
        small_disk,
        level="problem",
        after=lambda s: s.probes.update(run_storage=STORAGE),
    ),
    Case(
        "quota",
        "Disk quota exceeded in the second epoch",
        with_probes(quota_free_bytes=100_000),
        after=lambda s: s.probes.update(quota_free_bytes=10**12),
    ),
    Case(
        "free_files",
        "No space left on device, and df shows room: no inodes",
        with_probes(free_files=3),
        after=lambda s: s.probes.update(free_files=10**6),
    ),
    Case(
        "slow_storage",
        "checkpoints that take minutes on a network disk (metaseq#53)",
        with_probes(run_bytes_per_s=1e3),
        after=lambda s: s.probes.update(run_bytes_per_s=5e8),
    ),
    Case(
        "slow_data",
        "trl#7223: data read at 3 MB/s by every node",
        with_probes(data_bytes_per_s={"train.csv": 3e6}),
        after=lambda s: s.probes.update(data_bytes_per_s={}),
    ),
    Case(
        "clock_skew",
        "a file server that is minutes ahead: builds never end",
        with_probes(clock_skew_s=180.0),
        after=lambda s: s.probes.update(clock_skew_s=0.1),
    ),
    Case(
        "clock_skew",
        "nodes whose clocks differ",
        with_probes(node_skew_s={"node2": -40.0}),
        after=lambda s: s.probes.update(node_skew_s={"node2": 0.0}),
    ),
    Case(
        "driver_old",
        "The NVIDIA driver on your system is too old",
        with_probes(gpus=1, driver="535.1", driver_cuda="12.2"),
        line="pip install torch --index-url https://download.pytorch.org/whl/cu122",
        after=lambda s: s.probes.update(torch_cuda="12.2"),
    ),
    Case(
        "torch_build",
        "torch.cuda.is_available() is False: a build for processors",
        with_probes(driver="580.1", driver_cuda="13.0"),
        after=lambda s: s.probes.update(torch_cuda="13.0"),
    ),
    Case(
        "gpu_kernels",
        "no kernel image is available for execution on the device",
        with_probes(gpus=1, torch_archs=("sm_90", "sm_100")),
        after=lambda s: s.probes.update(torch_archs=("sm_80", "sm_90")),
    ),
    Case(
        "nccl_differs",
        "nccl#1730: LD_LIBRARY_PATH put another NCCL in front",
        lambda s: (with_environ(LD_LIBRARY_PATH="/opt/nccl/lib")(s), s.probes.update(loaded_nccl="2.18.3")),
        after=lambda s: s.probes.update(loaded_nccl=None),
    ),
    Case(
        "nccl_twice",
        "pip installed NCCL for CUDA 12 and 13",
        nccl_twice,
        line="pip uninstall -y nvidia-nccl-cu12",
        after=lambda s: s.versions.pop("nvidia-nccl-cu12"),
    ),
    Case(
        "toolchain",
        "DeepSpeed#1846: Ninja is required to load C++ extensions",
        lambda s: cpu_adam(s, "ninja"),
        line="pip install ninja",
        after=got("ninja"),
    ),
    Case("toolchain", "DeepSpeed#889: nvcc was not found", lambda s: cpu_adam(s, "nvcc"), after=got("nvcc")),
    Case("toolchain", "DeepSpeed#3094: no g++ on the compute nodes", lambda s: cpu_adam(s, "g++"), after=got("g++")),
    Case(
        "nvcc_differs",
        "DeepSpeed#5677: CUDAMismatchException",
        old_nvcc,
        line="module load cuda/13.0",
        after=lambda s: s.probes.update(nvcc="13.0"),
    ),
    Case("extension_lock", "a killed build left a lock, and every later run waited", killed_build),
    Case(
        "gpu_busy",
        "out of memory: somebody else's process on the GPU",
        with_probes(gpus=1, gpu_processes={0: 40 * 2**30}),
        after=lambda s: s.probes.update(gpu_processes={}),
    ),
    Case(
        "gpus_differ",
        "every step waited for the T4",
        mixed_gpus,
        after=lambda s: (s.node.update(gpus=[GPU]), setattr(s, "nproc", 1)),
    ),
    Case(
        "topology",
        "Lightning#2701: GPUs 0 and 1 had no NVLink, 0 and 2 had",
        with_probes(gpus=2, topology=MIXED_TOPOLOGY),
        line="export CUDA_VISIBLE_DEVICES=0,2",
        after=lambda s: s.probes.update(topology=None),
    ),
    Case(
        "numa",
        "four processes on one core each of the wrong socket",
        lambda s: (with_probes(gpus=4, topology=MIXED_TOPOLOGY)(s), s.node.update(num_usable_cores=2)),
        after=lambda s: s.node.update(num_usable_cores=32),
    ),
    Case(
        "shm_small",
        "bus error in a container: --shm-size",
        with_probes(gpus=2, shm_bytes=64 * 2**20),
        line="--shm-size=1g",
        after=lambda s: s.probes.update(shm_bytes=2**30),
    ),
    Case(
        "user_site",
        "another torch in ~/.local on one node",
        with_probes(user_site=("torch",)),
        line="export PYTHONNOUSERSITE=1",
        after=lambda s: s.probes.update(user_site=()),
    ),
    Case("too_many_workers", "64 loader processes on 32 cores", loaders, line="data.num_workers: 31"),
    Case(
        "tracker_online",
        "wandb#4217: nodes without a network waited for the server for ever",
        wandb_online,
        line="trackers.wandb.mode: offline",
    ),
    Case(
        "no_checkpoint",
        "goodfire-ai/spd#741: the time limit came and nothing had been saved",
        never_saved,
        line="checkpoint.every: epoch",
    ),
    Case(
        "cache_absent",
        "evaluate#567: compute nodes that reach no hub",
        hub_model_without_internet,
        after=lambda s: s.set("model.name", str(s.model)),
        level="problem",
    ),
    Case(
        "data_on_hub",
        "datasets that reach for the network on a compute node",
        lambda s: (
            on_site(s, no_network=True),
            s.probes["tools"].update({"package datasets": "x"}),
            s.set("data.train", "hub:someone/reviews"),
        ),
        after=lambda s: s.set("data.train", str(s.folder / "data" / "train.csv")),
    ),
    Case(
        "site_partition",
        "sbatch: invalid partition specified",
        wrong_site("partition", "partition", "partition: gpu"),
        line="partition: gpu",
        after=on_site,
    ),
    Case(
        "site_folder",
        "the job ended in its first second: no such virtual environment",
        wrong_site("folder", "venv", ""),
        after=on_site,
    ),
    Case("bf16_device", "bf16 on a partition of T4", t4_site, line="precision: fp16"),
    Case(
        "no_srun",
        "accelerate#1239: queued from a machine without Slurm",
        lambda s: (on_site(s), s.probes.update(tools={})),
        after=got("srun"),
    ),
    Case(
        "run_unfinished",
        "started again without --resume, after hours in the queue",
        unfinished_run,
        after=lambda s: shutil.rmtree(s.folder / "runs"),
    ),
]


def restore(set_up: SetUp) -> None:
    """Put a whole model in the place of a broken one: what the remedy asks for is outside of one line."""
    shutil.rmtree(set_up.model)
    shutil.copytree(set_up.folder.parent / "whole_model", set_up.model)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sound set-up with its files, to be copied; making a model takes longer than copying it."""
    return sound(tmp_path_factory.mktemp("whole") / "it").folder


@pytest.fixture
def set_up(whole, tmp_path):
    shutil.copytree(whole / "model", tmp_path / "whole_model")
    return sound(tmp_path / "it", copy_of=whole)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.code}: {case.source}" for case in CASES])
def test_each_broken_set_up_is_caught_and_its_line_repairs_it(set_up, case):
    case.break_it(set_up)
    found = [finding for finding in set_up.alarms() if finding.code == case.code]
    assert found, [(finding.code, finding.what) for finding in set_up.alarms()]
    finding = found[0]
    assert finding.what
    assert finding.where
    assert finding.why
    assert finding.line or finding.remedy
    if case.level:
        assert finding.level == case.level
    if case.line is not None:
        assert finding.line == case.line
    if case.after is None:
        set_up.apply(finding.line)
    else:
        case.after(set_up)
    left = set_up.alarms()
    assert case.code not in [finding.code for finding in left]
    assert not [finding for finding in left if finding.code == "check"]


def test_every_alarm_of_the_page_is_in_the_gallery():
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text().partition("## Of a run")[2]
    alarms = re.findall(r"^\| `(\w+)` \|[^|]*\| (?:problem|warning)", page, re.MULTILINE)
    assert len(alarms) > 60
    assert set(alarms) - {case.code for case in CASES} == {"cache_incomplete"}  # below


def test_the_gallery_is_large_enough():
    assert len({case.code for case in CASES}) >= 60
    assert len(CASES) >= 40


def test_a_cache_that_a_broken_download_left_is_named(set_up, tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--model" / "snapshots" / "abc"
    shutil.copytree(set_up.model, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    set_up.set("model.name", "someone/model")
    set_up.environ["HF_HUB_OFFLINE"] = "1"
    assert set_up.alarms() == []
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    (finding,) = set_up.alarms()
    assert (finding.code, finding.level) == ("cache_incomplete", "problem")
    assert "model.safetensors" in finding.what
    assert finding.line == "huggingface-cli download someone/model"


def test_a_port_is_tried_for_real():
    with socket.create_server(("", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_the_size_of_a_model_is_read_from_the_header_alone(set_up):
    # 2 x 3 and 4 numbers.
    header = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "b": {"dtype": "F32", "shape": [4], "data_offsets": [24, 40]},
        }
    ).encode()
    (set_up.model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(40))
    (finding,) = [one for one in set_up.findings() if one.code == "model"]
    assert "10 parameters" in finding.what


# ---- healthy ones

HEALTHY = {
    "one process on a processor": lambda s: None,
    "two processes on a processor": lambda s: (s.set("strategy.kind", "ddp"), setattr(s, "nproc", 2)),
    "one GPU in bf16": lambda s: (with_gpus(s, 1), s.set("precision", "bf16")),
    "four GPUs with ZeRO-3": lambda s: (with_gpus(s, 4), s.set("strategy.kind", "zero3")),
    "a pipeline of two": lambda s: (with_gpus(s, 2), s.set("strategy", {"kind": "pipeline", "stages": 2})),
    "two nodes of Slurm": lambda s: in_slurm(s, nodes=2),
    "a task a GPU": slurm(SLURM_NTASKS_PER_NODE="4", SLURM_NTASKS="4"),
    "under torchrun": with_environ(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="31000"
    ),
    "a cut validation set": lambda s: (only_train(s), s.set("data.split", {"validation": 0.2})),
    "numbers as targets": lambda s: (
        only_train(s),
        s.config.update(task={"kind": "regression"}),
        s.csv("train.csv", [{**row, "label": n * 37 % 80 / 8} for n, row in enumerate(rows(80))]),
    ),
    "from scratch": lambda s: s.set("model.from_scratch", True),
    "from scratch with another tokenizer": lambda s: (
        other_tokenizer(s),
        s.set("model.from_scratch", True),
        s.set("model.tokenizer", str(s.model)),
    ),
    "loaders": lambda s: s.set("data.num_workers", 2),
    "fp16 with a BERT": lambda s: (with_gpus(s, 1, T4), s.set("precision", "fp16")),
    "two nodes of a site": on_site,
    "a site without a network": lambda s: on_site(s, no_network=True),
    "NVLink between all": with_probes(gpus=2, topology=NVLINK_TOPOLOGY),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_raises_no_alarm(set_up, name):
    HEALTHY[name](set_up)
    assert [(finding.code, finding.what) for finding in set_up.alarms()] == []


ROOT = Path(__file__).parents[3]
RUNS = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if is_run(path)]


def test_there_are_configurations_to_look_at():
    assert len(RUNS) >= 25


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_our_own_configurations_raise_no_alarm(set_up, path, monkeypatch):
    """With files that hold what they name, a model that is there, and the machine that they are for."""
    monkeypatch.chdir(set_up.folder)
    tiny_model(set_up.model, max_length=512)
    loaded = load_config(path)
    make_files(loaded.config, set_up.folder)
    strategy = loaded.config.strategy
    traits = traits_of(strategy.kind, strategy_options(strategy))
    if (
        loaded.config.precision in ("bf16", "fp16", "tf32")
        or loaded.config.device == "cuda"
        or traits.needs_accelerator
    ):
        with_gpus(set_up, max(2, traits.min_world_size) if strategy.kind != "single" else 1)
    else:
        set_up.nproc = traits.min_world_size
    set_up.versions["deepspeed"] = "0.19.8"
    overrides = [f"model.name={set_up.model}", "model.tokenizer=null", "model.overrides={}", "model.revision=null"]
    assert [(finding.code, finding.what) for finding in set_up.alarms_of(path, overrides)] == []
