"""Answers of `paratune plan` to ten questions with public answers (benchmarks/plan_questions.yaml).

OMP_NUM_THREADS=1 python benchmarks/plan_questions.py            # no network, no GPU, no data, no weights
"""

import argparse
import json
import logging
import os
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from machine import GIB, machine_lines
from plan_published import CONFIG_FILES, CONFIGS

import paratune
from paratune.errors import ParatuneError
from paratune.planning import enumerate as options_of_plans
from paratune.planning import table as tables
from paratune.planning.predict import Prediction
from paratune.planning.table import Plan

FILE = Path(__file__).with_suffix(".yaml")
GPT = {"model_type": "gpt2", "n_layer": 36, "n_embd": 4096, "n_head": 32, "architectures": ["GPT2LMHeadModel"]}
"""The model of 7.46 billion parameters that the settings name GPT."""
STATES = ("weights", "gradients", "optimizer")


def use_attention(name: str) -> None:
    """Plan with this attention in place of the one that paratune chooses."""
    original = options_of_plans.option_setup
    options_of_plans.option_setup = lambda *inputs: replace(original(*inputs), attention=name)


def answer(check: Mapping[str, Any], folder: Path) -> tuple[Plan | None, str]:
    """Return the plan of a check; None and the reason if there is none."""
    settings = {"batch.layout": "padded", "train.optimizer": "adamw", **check["set"]}
    if settings["model.name"] == "GPT":
        settings["model.name"] = str(folder)
    try:
        plan = paratune.plan(CONFIGS / CONFIG_FILES[check["task"]], settings, **check["ask"])
    except ParatuneError as error:
        return None, f"{error.code}: {error}"
    if not plan.predictions:
        return None, "; ".join(rejected.reason for rejected in plan.impossible)
    return plan, ""


def figures(plan: Plan) -> dict[str, Any]:
    """Return what the checks compare: of the recommended option, else of the one that lacks the least memory."""
    best = plan.recommended or max(plan.predictions, key=lambda one: one.room_bytes or 0)
    step, states = best.figures["step_s"], [best.memory.terms.get(name, 0) for name in STATES]
    return {
        "is_possible": True,
        "fits": plan.fits,
        "recommended": None if plan.recommended is None else best.option.name,
        "largest": best.largest_micro_batch,
        "peak_gib": best.memory.total / GIB,
        "states_gb": sum(states) / 1e9,
        "samples_per_s": None if step is None else best.option.setup.global_batch_size / step.value,
        "best": best,
    }


def agrees(expected: Any, found: Any) -> bool:
    """Return whether an answer is the expected one, one of several, or in the range of two numbers."""
    if isinstance(expected, list) and isinstance(expected[0], str):
        return str(found).partition(":")[0] in expected
    if isinstance(expected, list):
        return found is not None and expected[0] <= found <= expected[1]
    return bool(found == expected)


def shown(value: Any) -> str:
    """Return an answer, or the expected one, for the table."""
    if isinstance(value, list):
        return (" or " if isinstance(value[0], str) else " to ").join(map(shown, value))
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "n/a"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def described(best: Prediction) -> str:
    """Return the option that was compared, with its memory and rate."""
    setup, step = best.option.setup, best.figures["step_s"]
    memory, usable = best.memory, (best.memory.total + (best.room_bytes or 0)) / GIB
    text = f"{best.label}: {best.fit}, {memory.total / GIB:.1f} (to {memory.bounds[1] / GIB:.1f}) of {usable:.1f} GiB"
    text += f"; largest {shown(best.largest_micro_batch)}"
    if step is not None:
        rates = [setup.global_batch_size / seconds for seconds in (step.value, step.high, step.low)]
        text += "; {:.4g}/s ({:.4g} to {:.4g})".format(*rates)
    return text


def table(question: Mapping[str, Any], folder: Path) -> tuple[list[str], list[bool]]:
    """Return the answers to a question as lines of Markdown, and whether each agrees."""
    lines, verdicts = [f"## {question['question']}", ""], []
    if "unknown" in question:
        lines += [textwrap.fill(f"Not known: {question['unknown']}.", 120), ""]
    lines += ["| check | published | expected | paratune | agrees |", "|---|---|---|---|---|"]
    for check in question["checks"]:
        plan, why_not = answer(check, folder)
        found: dict[str, Any] = {"is_possible": False} if plan is None else figures(plan)
        expected = check["agrees"]
        verdicts.append(all(agrees(value, found.get(key)) for key, value in expected.items()))
        wanted = ", ".join(f"{key} {shown(value)}" for key, value in expected.items())
        given = ", ".join(f"{key} {shown(found.get(key))}" for key in expected)
        detail = why_not if plan is None else described(found["best"])
        verdict = "yes" if verdicts[-1] else "**no**"
        source = f"{check['published']} ({check['source']})"
        lines.append(f"| {check['name']} | {source} | {wanted} | **{given}**; {detail} | {verdict} |")
    return [*lines, ""], verdicts


def main() -> None:
    """Ask all questions and print the answers as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", type=int, default=[], help="numbers of questions; default: all")
    parser.add_argument("--attention", choices=["eager", "sdpa"], help="default: the one that paratune chooses")
    options = parser.parse_args()
    if options.attention is not None:
        use_attention(options.attention)
    questions = yaml.safe_load(FILE.read_text(encoding="utf-8"))["questions"]
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)
    tables.needs_remedies = lambda _predictions: False  # the checks are about the settings that they name
    print("\n".join([*machine_lines(), ""]))
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(GPT), encoding="utf-8")
        for number, question in enumerate(questions, start=1):
            if number in options.only or not options.only:
                lines, agreed = table(question, Path(name))
                print("\n".join(lines), flush=True)
                verdicts += agreed
    print(f"{sum(verdicts)} of {len(verdicts)} checks agree.")


if __name__ == "__main__":
    main()
