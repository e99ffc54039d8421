"""The arithmetic of the benchmarks: model FLOPs, time that kernels cover, tables, and what a command line asks for."""

import importlib
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 40,
}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """Import a module of benchmarks/, which is not part of the package."""
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize(
    ("name", "make", "beside"),
    [
        ("imdb", BertForSequenceClassification, 2 * 2 * 16 * 2),  # the classifier: 2 D C for each of 2 rows
        ("squad", BertForQuestionAnswering, 0),
    ],
)
def test_model_flops_are_those_that_pytorch_counts(bench, name, make, beside):
    cases = bench("speed_cases")
    sizes = {**SIZES, "num_hidden_layers": 3}
    model = make(BertConfig(attn_implementation="eager", **sizes)).eval()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(2, 9, dtype=torch.int64))
    case = replace(cases.CASES[name], evaluates=True)
    assert cases.model_flops(case, [9, 9], sizes) == counter.get_total_flops() - beside
    assert cases.model_flops(cases.CASES[name], [9, 9], sizes) == 3 * cases.model_flops(case, [9, 9], sizes)


def test_a_masked_lm_needs_its_head_for_the_hidden_tokens(bench):
    cases = bench("speed_cases")
    model = BertForMaskedLM(BertConfig(attn_implementation="eager", **SIZES)).eval()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, 20, dtype=torch.int64))
    head = 2 * 16**2 + 2 * 16 * 50  # of a token; PyTorch's model runs it for all 20, the task needs 3 of them
    case = replace(cases.CASES["mlm"], evaluates=True)
    expected = counter.get_total_flops() - 17 * head
    assert cases.model_flops(case, [20], SIZES) == pytest.approx(expected)


def test_time_that_overlapping_kernels_cover_counts_once(bench):
    # 0-4 and 3-6 are 6 together, 5-6 is inside of them, 8-9 is apart.
    assert bench("step_watch").covered([(3, 6), (0, 4), (8, 9), (5, 6)]) == 7


SETTING = {
    "model": "minilm",
    "case": "imdb",
    "batch_size": 16,
    "num_steps": 5,
    "max_length": 512,
    "layout": None,
    "precision": "fp32",
}
SETTING |= {"num_samples": 80, "num_set_tokens": 800, "model_flops": 1e9, "process_cpu_s": 9.0, "device": None}


def row(side: str, number: int, cpu_s: float, **values: object) -> dict[str, object]:
    return {
        "side": side,
        "round": number,
        "cpu_s": cpu_s,
        "wall_s": 2 * cpu_s,
        **SETTING,
        **values,
    }


def test_ratios_are_of_the_same_round(bench):
    rows = [row("paratune", 0, 1.0), row("paratune", 1, 4.0), row("padded", 0, 3.0), row("padded", 1, 8.0)]
    rows += [row("ceiling", 0, 0.0, gflop_per_s=2.0), row("ceiling", 1, 0.0, gflop_per_s=2.0)]
    lines = bench("speed_table").table(rows)
    # 3 / 1 and 8 / 4; beside the aims of this case.
    ratio = "| imdb, minilm | paratune | Trainer (a) padded to the maximum | 2.50 (2.00 to 3.00) |"
    assert any(line.startswith(ratio) and line.endswith("| 3.2 | 4.0 |") for line in lines)
    # 1e9 / 1 s and 1e9 / 4 s of 2 GFLOP/s.
    assert any(line.startswith("| paratune | 2 |") and line.endswith("| 31 (12 to 50)% |") for line in lines)


def test_the_quick_start_divides_the_time_of_trainer_by_that_of_paratune(bench):
    quickstart = bench("quickstart")
    # 4 / 1, 6 / 2 and 10 / 2; 1 / 1, 3 / 2 and 1.8 / 2.
    seconds = {"padded": [4.0, 6.0, 10.0], "grouped": [1.0, 3.0, 1.8], "paratune": [1.0, 2.0, 2.0]}
    sentence = quickstart.speed_sentence(seconds, quickstart.CPU)
    assert re.findall(r"\d+\.\d\d", sentence) == ["4.00", "3.00", "5.00", "1.00", "0.90", "1.50"]


def test_a_gpu_s_table_has_mfu_only_where_the_peak_is_known(bench):
    found = {"device": "NVIDIA H100 80GB HBM3", "model_flops": 989e12, "gpu_idle_share": 0.25}
    lines = bench("speed_table").table([row("paratune", 0, 1.0, **found), row("padded", 0, 6.0, **found)])
    # 989 TFLOP in 2 s of 989 TFLOP/s, 80 samples in 2 s.
    assert "| paratune | fp32 | 1 | 40 | 494.5 | 50.0% | 25% |" in lines
    unknown = bench("speed_table").table([row("paratune", 0, 1.0, **{**found, "device": "another"})])
    assert "| paratune | fp32 | 1 | 40 | 494.5 | n/a | 25% |" in unknown


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--model", "base"], (["imdb"], "base", 3)),
        (["--gpu", "--table-only"], (["imdb", "mrpc", "squad", "mlm", "eval"], "base", 40)),
        (["--cases", "mrpc", "--steps", "2"], (["mrpc"], "minilm", 2)),
    ],
)
def test_a_command_line_says_which_cases_are_measured(bench, monkeypatch, words, found):
    speed = bench("speed")
    monkeypatch.setattr(sys, "argv", ["speed.py", "--data", ".", *words])
    options = speed._options()
    cases = speed._cases(options)
    assert (options.cases, cases[0].model, cases[0].num_steps) == found
    assert options.sides == list(speed.GPU_SIDES if "--gpu" in words else speed.SIDES)


def test_a_gpu_that_is_not_there_is_refused(bench, monkeypatch, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(sys, "argv", ["speed.py", "--data", ".", "--gpu"])
    with pytest.raises(SystemExit):
        bench("speed")._options()
    assert "--gpu: PyTorch sees no GPU here" in capsys.readouterr().err


def test_sides_belong_to_the_device(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--data", ".", "--sides", "ceiling", "--gpu", "--table-only"])
    with pytest.raises(SystemExit):
        bench("speed")._options()
    assert "--sides ceiling: with --gpu there are paratune" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_first_step_does_not_need_is_not_imported_before_it(bench, tmp_path):
    startup = bench("startup")
    *python, program, command, path, option = startup._commands(tmp_path, with_validation=True)["paratune train"]
    program = program.replace('"num_modules": len(sys.modules)', '"modules": sorted(sys.modules)')
    modules = startup._run([*python, program, command, path, option])["modules"]
    assert "transformers.models.bert.modeling_bert" in modules
    assert not {"pandas", "scipy.stats", "sklearn", "matplotlib", "datasets", "deepspeed"} & set(modules)


def test_benchmarks_of_portuguese_leave_out_lines_that_share_eight_words_with_what_is_measured(bench):
    measured = bench("portuguese").ShingleSet(["um dois três quatro cinco seis sete oito nove", "Só isto."])
    assert "ZERO, um dois três quatro cinco seis sete oito" in measured
    assert "dois três quatro cinco seis sete oito nove, dez" in measured
    assert "um dois três quatro cinco seis sete e oito nove" not in measured
    assert "só isto" in measured  # a shorter text as a whole
    assert "só isto não" not in measured


def test_windows_are_compared_with_truncation_seed_by_seed(bench):
    line = bench("long_documents").difference_line({"first": [0.80, 0.82], "windows": [0.85, 0.83]})
    # 5.0 and 1.0 points.
    assert "+3.0 points" in line
    assert "from +1.0 to +5.0" in line


def test_tokenizer_takes_marks_out_of_snippets_of_a_search(bench):
    snippet = 'o <em>sal&aacute;rio</em> <em>m&iacute;nimo</em><span class="ellipsis"> ... </span>de\nLisboa<span cl'
    assert bench("tokenizer").plain(snippet) == "o salário mínimo\nde Lisboa\n"


def test_masks_that_repeat_are_found(bench, monkeypatch):
    draws = bench("dropout_draws")
    assert all(abs(zs).max() < 6 for zs in draws._of_masks(2).values())
    real = draws.MaskSource

    def same(p: float):
        torch.manual_seed(1)
        return real(p)

    monkeypatch.setattr(draws, "MaskSource", same)
    found = draws._of_masks(2)
    # A mask beside itself: each product is a square, and the mean of 65,536 of them is 1.
    assert found["sources of one step"].min() > 200
    assert found["two ranks in one step"].min() > 200


def test_gradients_of_two_sides_are_told_apart(bench):
    draws = bench("dropout_draws")
    one = torch.randn(400, 5, generator=torch.Generator().manual_seed(1))
    other = torch.randn(400, 5, generator=torch.Generator().manual_seed(2))
    assert abs(draws._z_of_means(one, other)).max() < 4
    # A mean that is 1 off, with standard errors of sqrt(1/400 + 1/400): a z of 14.
    assert draws._z_of_means(one + 1, other).min() > 10


def test_sides_take_turns_block_by_block_and_may_end_early(bench):
    paired = bench("loop_cost_paired")
    turns = paired.Turns(["a", "b", "c"], block=2)
    order: list[str] = []

    def run(name: str, num_steps: int) -> None:
        turns.start(name)
        for _ in range(num_steps):
            order.append(name)
            turns.step(name)
        turns.leave(name)

    threads = [threading.Thread(target=run, args=args) for args in (("a", 4), ("b", 2), ("c", 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert "".join(order) == "aabbccaacc"
    assert {name: len(blocks) for name, blocks in turns.cpu_ms.items()} == {"a": 2, "b": 1, "c": 2}


def test_the_innermost_part_gets_the_time(bench, monkeypatch):
    parts = bench("loop_cost_parts")
    now = [0.0]
    monkeypatch.setattr(parts.time, "thread_time", lambda: now[0])

    def takes(seconds: float) -> None:
        now[0] += seconds

    account = parts.Account()
    inner = account.timed("inner", lambda: takes(2.0))

    def work() -> None:
        takes(1.0)
        inner()
        takes(4.0)

    account.timed("outer", work)()
    takes(8.0)
    account.end_step()
    takes(16.0)
    account.end_step()
    assert account.steps == [{"outer": 5.0, "inner": 2.0, parts.REST: 8.0}, {parts.REST: 16.0}]


def test_table_of_smaller_models_has_medians_and_ranges(bench):
    rounds = [{"rss_mib": 100.0, "p50_ms": value, "p95_ms": 3.0, "texts_per_s": 50.0} for value in (2.0, 4.0, 1.0)]
    rounds = [entry | {"num_correct": 90, "num_rows": 100} for entry in rounds]
    size = {"original_float32_bytes": 4 * 2**20, "weights_bytes": 2**20}
    record = {"size": size, "check": {"agreement": 0.975, "max_abs": 0.25}}
    *_, original, smaller = bench("compress").table(
        {"float32": rounds, "int8": rounds}, {"float32": None, "int8": record}
    )
    # Wilson's interval for 90 of 100: 0.826 to 0.945 (Wilson, JASA 1927).
    assert original.startswith(
        "| float32 | 4.0 | 100 (100 to 100) | 2.0 (1.0 to 4.0) | 3.0 (3.0 to 3.0) | 50 (50 to 50) |"
    )
    assert "0.900 (0.826 to 0.945)" in original
    assert smaller.startswith("| int8 | 1.0 |")
    assert smaller.endswith("| 97.5% | 0.25 |")


def test_table_of_the_server_has_nearest_ranks_and_medians_of_rounds(bench):
    module = bench("serve")
    assert [module.percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.75, 0.99)] == [2.0, 3.0, 4.0]
    rounds = [{"cpu_ms": cpu, "per_s": 8.0, "short_ms": [1.0, 2.0, 9.0], "long_ms": [30.0]} for cpu in (5.0, 7.0, 6.0)]
    *_, line = module.table({"packed": rounds})
    assert line == ("| packed | 6 (5 to 7) | 8 (8 to 8) | 2 (2 to 2) | 9 (9 to 9) | 30 (30 to 30) | 30 (30 to 30) |")
    assert module.spread({"a": [0.5, 0.25], "b": [0.5, 0.75]}) == 0.5


def test_runs_side_by_side_are_counted_by_the_hour(bench):
    passes = [
        {"round": number, "way": way, "seconds": seconds}
        for number, times in enumerate([(270.0, 135.0), (300.0, 200.0), (243.0, 162.0)], start=1)
        for way, seconds in zip(("1 x 2", "2 x 1"), times, strict=True)
    ]
    found = {
        "num_configurations": 9, "num_seeds": 3, "steps": 40, "passes": passes, "num_compared": 81,
        "different": ["round 1: a"], "largest_score_difference": 0.0,
    }  # fmt: skip
    line = bench("sweep_parallel").speed_line(found)
    # 27 runs in 270, 300, 243 s: 360, 324, 400 an hour; in 135, 200, 162 s: 720, 486, 600.
    for text in ("360 (324 to 400)", "600 (486 to 720)", "1.50 (1.50 to 2.00)", "80 of 81"):
        assert text in line
