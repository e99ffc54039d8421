"""Times of a step against arithmetic written out: a machine whose figures are round, a profile of BERT-base."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
from transformers import AutoConfig

from paratune.config.strategy_sections import (
    DDPOptions,
    DeepSpeedOptions,
    HSDPOptions,
    PipelineOptions,
    SingleOptions,
    Strategy,
    Zero1Options,
    Zero2Options,
    Zero3Options,
    strategy_options,
)
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.planning.constants import Bounded, Constants, UnknownConstant
from paratune.planning.kinds import KINDS
from paratune.planning.kinds.replicated import ddp_buckets
from paratune.planning.machine import Machine, find_machine
from paratune.planning.profile import Parameter, Profile, Shape, profile
from paratune.planning.states import PredictionSetup, padded_bytes
from paratune.planning.time import TERMS, step_time
from paratune.planning.trace import Operation, Phase
from paratune.planning.work import StepCase, Work, pass_seconds
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])


@cache
def bert_base(precision: str = "fp32", checkpointing: int | None = None, *, with_division: bool = False) -> Profile:
    config = AutoConfig.for_model("bert")
    shape, policy = Shape((128,) * 4), POLICIES[precision]
    return profile(config, TASK, shape, policy, activation_checkpointing=checkpointing, with_division=with_division)


def figures(**values: float) -> Constants:
    names = {name.replace("__", "."): Bounded(value, value, value) for name, value in values.items()}
    return Constants(names)


ROUND = figures(
    product__fp32=1e12,
    batched__fp32=1e12,
    elementwise=1e15,
    activation=1e15,
    softmax=1e15,
    norm=1e15,
    dropout=1e15,
    gather=1e15,
    launch__forward=0.0,
    launch__backward=0.0,
    adamw=1e12,
    link=1e11,
    link__latency=0.0,
    network=1e10,
    network__latency=0.0,
    host_link=1e10,
    adamw__host=1e11,
    overlap=1.0,
)
"""All memory is so fast that products alone take time."""


def machine(constants: Constants | None = ROUND) -> Machine:
    return Machine("round", None, is_cuda=True, memory_bytes=None, constants=constants)


def setup(strategy: Strategy, num_ranks: int = 1, ranks_per_node: int | None = None, steps: int = 1) -> PredictionSetup:
    traits = strategy_traits(strategy.kind, strategy_options(strategy))
    assert traits is not None
    return PredictionSetup(strategy, traits, POLICIES["fp32"], num_ranks, ranks_per_node or num_ranks, 4, steps)


ZERO1 = Zero1Options(kind="zero1")
SINGLE = setup(SingleOptions(kind="single"))
JOB = 512
"""Tokens."""


def terms(
    way: PredictionSetup, constants: Constants = ROUND, model: Profile | None = None, **job: Any
) -> dict[str, float]:
    step = step_time(StepCase(model or bert_base(), way, machine(constants), JOB, **job))[0]
    assert step is not None
    assert tuple(step.terms) == TERMS
    assert sum(step.terms.values()) == pytest.approx(step.total.value)
    return dict(step.terms)


def test_forward_and_backward_of_bert_base_take_the_time_of_their_products() -> None:
    # Kaplan et al. 2020, table 1, for an encoder of L layers, width D, rows of S tokens: a token takes 2 * 12 L D^2 in
    # the weights and 4 L S D in the scores. BERT-base: L = 12, D = 768; here 512 tokens in rows of 128. The pooler is
    # 2 D^2 a row, less than 1 in 10,000.
    forward = 512 * (24 * 12 * 768**2 + 4 * 12 * 128 * 768) / 1e12
    # Backward twice the weights' products; of the flash kernel's 2 products, 5 (FlashAttention, appendix B).
    backward = 512 * (48 * 12 * 768**2 + 10 * 12 * 128 * 768) / 1e12
    step = terms(SINGLE)
    assert step["forward"] == pytest.approx(forward, rel=0.001)
    assert step["backward"] == pytest.approx(backward, rel=0.001)


def test_the_optimizer_takes_the_bytes_of_its_states() -> None:
    # 109.48 million weights (Devlin et al.: 110 M), 4 bytes each, nine times read or written.
    assert terms(SINGLE)["optimizer"] == pytest.approx(9 * 4 * 109_483_778 / 1e12)
    assert terms(SINGLE)["communication_exposed"] == terms(SINGLE)["bubble"] == terms(SINGLE)["offload"] == 0


def test_activations_computed_again_are_another_forward_pass() -> None:
    plain, again = terms(SINGLE), terms(SINGLE, model=bert_base(checkpointing=1))
    assert again["forward"] == pytest.approx(plain["forward"])
    # All of it but the pooler and the last product of each block, whose output nothing needs.
    assert again["backward"] == pytest.approx(plain["backward"] + plain["forward"], rel=0.01)


def test_operation_takes_the_longest_of_arithmetic_memory_and_launch() -> None:
    constants = figures(
        product__fp32=100.0, product__tf32=1000.0, elementwise=10.0, norm=5.0, kernel=2.0, launch__forward=1.0
    )
    operations = Counter(
        {
            Operation(1000, 20, "float32", "mm"): 3,  # 10 s of arithmetic, 2 s of memory
            Operation(100, 500, "float32", "mm"): 1,  # 1 s and 50 s
            Operation(0, 50, "float32", "native_layer_norm"): 2,  # 10 s each
            Operation(0, 1, "float32", "add"): 5,  # shorter than the shortest kernel, 2 s
        }
    )
    seconds = pass_seconds(operations, constants, launch="launch.forward", tf32=False, is_cuda=True)
    assert seconds == pytest.approx((30 + 50 + 20 + 10, 11))
    tf32 = pass_seconds(operations, constants, launch="launch.forward", tf32=True, is_cuda=True)
    assert tf32[0] == pytest.approx(3 * 2 + 50 + 20 + 10)
    on_cpu = pass_seconds(operations, constants, launch="launch.forward", tf32=False, is_cuda=False)
    assert on_cpu == pytest.approx((30 + 50 + 20 + 0.5, 11))


def test_step_is_host_bound_with_slow_launches() -> None:
    slow = ROUND.replaced(figures(launch__forward=1.0, launch__backward=1.0).by_name)
    step = step_time(StepCase(bert_base(), SINGLE, machine(slow), JOB))[0]
    assert step is not None
    assert step.terms["forward"] == len(bert_base().forward.kernels)


def test_reductions_overlap_the_backward_pass() -> None:
    # Two blocks of 1 s each: 120 bytes of gradients are there after 1 s, 120 and 40 after 2 s. 2 ranks send them once.
    blocks = [Parameter(name, (30,), block=number) for number, name in enumerate("ab")]
    model = Profile((*blocks, Parameter("c", (10,))), 2, 4, 0, 0, (), 0, Phase(), Phase())

    def exposed(link: float, overlap: float, num_ranks: int = 2) -> float:
        way = setup(DDPOptions(kind="ddp", bucket_cap_mb=100 / 2**20), num_ranks)
        constants = ROUND.replaced(figures(link=link, overlap=overlap).by_name)
        work = Work(StepCase(model, way, machine(constants), JOB), constants)
        work.backward_s = 2.0
        return KINDS["ddp"].seconds(work).communication_s

    assert exposed(40.0, overlap=1.0) == pytest.approx(1 + 3 + 3 + 1 - 2)
    assert exposed(480.0, overlap=1.0) == pytest.approx(0.25 + 40 / 480)
    assert exposed(40.0, overlap=0.0) == pytest.approx(3 + 3 + 1)
    assert exposed(40.0, overlap=1.0, num_ranks=1) == 0.0


def test_buckets_are_closed_by_the_tensor_that_fills_them() -> None:
    parameters = [Parameter(name, (size,), block=block) for block in (0, 1) for name, size in (("a", 10), ("b", 20))]
    model = Profile((*parameters, Parameter("c", (7,))), 2, 4, 0, 0, (), 0, Phase(), Phase())
    # 4 bytes each; from the last block's last tensor on: 80 + 40 bytes, again, then 28.
    buckets = ddp_buckets(model, setup(DDPOptions(kind="ddp", bucket_cap_mb=100 / 2**20), 2))
    assert buckets == [(0.5, 120), (1.0, 120), (1.0, 28)]
    assert sum(num_bytes for _, num_bytes in ddp_buckets(model, setup(DDPOptions(kind="ddp"), 2))) == 4 * 67


def test_ddp_leaves_the_last_bucket_exposed() -> None:
    way = setup(DDPOptions(kind="ddp"), 4)
    buckets = ddp_buckets(bert_base(), way)
    assert sum(size for _, size in buckets) == 4 * 109_483_778
    # 2 (N - 1) / N of the bytes at 1e11 a second; all blocks' fit behind their backward pass of 270 ms, and only the
    # buckets that the embeddings complete are left.
    last = sum(size for ready, size in buckets if ready == 1.0)
    step = terms(way)
    assert step["communication_exposed"] == pytest.approx(1.5 * last / 1e11)
    # Without any overlap all of it is.
    local_step = ROUND.replaced(figures(overlap=0.0).by_name)
    assert terms(way, local_step)["communication_exposed"] == pytest.approx(1.5 * 4 * 109_483_778 / 1e11)


def test_ddp_of_one_rank_is_single() -> None:
    assert terms(setup(DDPOptions(kind="ddp"))) == terms(SINGLE)


def test_zero1_updates_a_share_and_broadcasts_it() -> None:
    step = terms(setup(ZERO1, 4), ROUND.replaced(figures(overlap=0.0).by_name))
    num_bytes = 4 * 109_483_778
    assert step["communication_exposed"] == pytest.approx((1.5 + 0.75) * num_bytes / 1e11)
    assert step["optimizer"] == pytest.approx((1 + 8 / 4) * num_bytes / 1e12)
    # Broadcasts of 201 tensors from all four ranks: three quarters of that many steps of latency.
    late = figures(overlap=0.0, link__latency=1e-3).by_name
    ddp, zero1 = (terms(setup(strategy, 4), ROUND.replaced(late)) for strategy in (DDPOptions(kind="ddp"), ZERO1))
    sent = zero1["communication_exposed"] - ddp["communication_exposed"]
    assert sent == pytest.approx(0.75 * num_bytes / 1e11 + 201 / 4 * 3 * 1e-3)


def test_zero3_gathers_twice_and_reduces_once() -> None:
    exposed = ROUND.replaced(figures(overlap=0.0).by_name)
    num_bytes = 4 * 109_483_778
    step = terms(setup(Zero3Options(kind="zero3"), 4), exposed)
    assert step["communication_exposed"] == pytest.approx(3 * 0.75 * num_bytes / 1e11, rel=1e-3)
    # A separate pass clips the gradients: ten times the bytes of a quarter.
    assert step["optimizer"] == pytest.approx(10 * num_bytes / 4 / 1e12)
    # With two micro-batches gathered four times, reduced once; ZeRO-2 gathers once whatever their number.
    twice = terms(setup(Zero3Options(kind="zero3"), 4, steps=2), exposed)
    assert twice["communication_exposed"] == pytest.approx(5 * 0.75 * num_bytes / 1e11, rel=1e-3)
    zero2 = terms(setup(Zero2Options(kind="zero2"), 4, steps=2), exposed)
    assert zero2["communication_exposed"] == pytest.approx(2 * 0.75 * num_bytes / 1e11, rel=1e-3)
    hidden = terms(setup(Zero3Options(kind="zero3"), 4))
    assert 0 < hidden["communication_exposed"] < step["communication_exposed"] / 2


def test_sizes_of_shards_are_computed_once_and_not_for_each_bound_of_a_constant() -> None:
    padded_bytes.cache_clear()
    terms(setup(Zero3Options(kind="zero3"), 4))
    # 12 blocks and the rest: all weights and the trained ones, in 4 shards; the gradients in one.
    assert padded_bytes.cache_info().misses == 13 * 3
    assert padded_bytes.cache_info().hits > 13 * 3


BF16 = {"param_dtype": "bf16"}


def half(strategy: Strategy, figures_of: Constants) -> dict[str, float]:
    """Return the terms of a way with weights of bf16, on 4 devices."""
    policy = POLICIES["bf16"].with_weights("bf16")
    model = profile(AutoConfig.for_model("bert"), TASK, Shape((128,) * 4), policy)
    step = step_time(StepCase(model, replace(setup(strategy, 4), precision=policy), machine(figures_of), JOB))[0]
    assert step is not None
    return dict(step.terms)


@pytest.fixture(scope="module")
def in_bf16() -> Constants:
    return ROUND.replaced(figures(product__bf16=1e12, batched__bf16=1e12, overlap=0.0).by_name)


def test_weights_of_16_bits_are_gathered_in_half_the_bytes_and_reduced_in_fp32(in_bf16: Constants) -> None:
    step = half(Zero3Options(kind="zero3", **BF16), in_bf16)
    # 109,483,778 numbers, three quarters of which come from other ranks: 2 bytes each twice, 4 bytes of gradients.
    expected = 0.75 * 109_483_778 * (2 * 2 + 4) / 1e11
    assert step["communication_exposed"] == pytest.approx(expected, rel=1e-3)
    # The update is that of a quarter in fp32.
    assert step["optimizer"] == pytest.approx(10 * 4 * 109_483_778 / 4 / 1e12, rel=1e-3)
    # A cast of the rank's quarter, 4 bytes to 2, comes with each gathering.
    slow = in_bf16.replaced(figures(elementwise=1e11).by_name)
    copies = 2 * 2 * 2 * 109_483_778 + 2 * 4 * 109_483_778  # gathered weights twice, gradients once; read and written
    more = half(Zero3Options(kind="zero3", **BF16), slow)["communication_exposed"] - step["communication_exposed"]
    assert more == pytest.approx((copies + 2 * 6 * 109_483_778 / 4) / 1e11, rel=1e-3)


def test_deepspeeds_own_mode_sends_gradients_in_16_bits_and_casts_them_to_update(in_bf16: Constants) -> None:
    strategy = DeepSpeedOptions(kind="deepspeed", stage=2, **BF16)
    step = half(strategy, in_bf16)
    # An all-reduce of gradients, a gather of the weights.
    assert step["communication_exposed"] == pytest.approx((1.5 + 0.75) * 2 * 109_483_778 / 1e11)
    assert step["optimizer"] == pytest.approx(9 * 4 * 109_483_778 / 4 / 1e12, rel=1e-3)
    slow = half(strategy, in_bf16.replaced(figures(elementwise=1e11).by_name))
    assert slow["optimizer"] - step["optimizer"] == pytest.approx(16 * 109_483_778 / 4 / 1e11, rel=1e-3)


def test_hybrid_sharding_keeps_gathers_within_the_machine() -> None:
    exposed = ROUND.replaced(figures(overlap=0.0).by_name)
    num_bytes = 4 * 109_483_778
    step = terms(setup(HSDPOptions(kind="hsdp"), 8, ranks_per_node=4), exposed)
    within = 3 * 0.75 * num_bytes / 1e11
    # Each rank's quarter is summed over two machines, 4 rings through one network of 1e10 bytes a second.
    between = 2 * 0.5 * num_bytes / 4 / (1e10 / 4)
    assert step["communication_exposed"] == pytest.approx(within + between, rel=1e-3)


def test_a_pipeline_waits_for_its_bubble() -> None:
    way = setup(PipelineOptions(kind="pipeline", stages=4), 4, steps=8)
    model = bert_base(with_division=True)
    step, local_step = terms(way, model=model), terms(SINGLE)
    computing = 8 * (local_step["forward"] + local_step["backward"]) / 4
    # GPipe, section 2.3: (p - 1) / (m + p - 1) = 3 / 11 of the schedule; 12 blocks make 4 equal stages.
    waiting = step["bubble"] / (step["bubble"] + computing)
    assert waiting == pytest.approx(3 / 11, rel=0.01)
    # 12 blocks on 5 stages: the fullest has 3, where 2.4 would be even.
    uneven = terms(setup(PipelineOptions(kind="pipeline", stages=5), 5, steps=8), model=model)
    ideal = 8 * (local_step["forward"] + local_step["backward"]) / 5
    assert uneven["bubble"] == pytest.approx(ideal * 3 / 2.4 * 12 / 8 - ideal, rel=0.01)


def test_a_pipeline_is_cut_as_the_strategy_cuts_it() -> None:
    config = AutoConfig.for_model("bert", num_hidden_layers=4)
    cut = profile(config, TASK, Shape((128,) * 4), POLICIES["fp32"], with_division=True)
    way = setup(PipelineOptions(kind="pipeline", stages=2, balance=[3, 1]), 2, steps=4)
    step, local_step = terms(way, model=cut), terms(SINGLE, model=cut)
    # 3 of 4 equal blocks on the first rank, where 2 would be even; m = 4, p = 2: 5/4 of its time.
    ideal = 4 * (local_step["forward"] + local_step["backward"]) / 2
    assert step["bubble"] == pytest.approx(ideal * 1.5 * 5 / 4 - ideal, rel=0.01)
    # Devlin et al.: a block has 7.09 M weights, embeddings 23.84 M; the first rank trains 3 blocks and embeddings.
    assert step["optimizer"] == pytest.approx(9 * 4 * (3 * 7_087_872 + 23_837_184) / 1e12)


def test_hidden_states_of_a_pipeline_are_as_wide_as_the_model() -> None:
    assert bert_base().hidden_bytes == 512 * 768 * 4


def test_offloaded_states_cross_to_the_host_and_are_updated_there() -> None:
    num_bytes = 4 * 109_483_778
    step = terms(setup(Zero3Options(kind="zero3", cpu_offload=True), 4))
    # A quarter comes for forward and for backward, its gradients go: at 1e10; nine passes, 4 ranks in one memory: 1e11.
    # The two rows of the head are padded to four.
    assert step["offload"] == pytest.approx(3 * num_bytes / 4 / 1e10 + 9 * num_bytes / 1e11, rel=1e-4)
    assert step["optimizer"] == 0
    deepspeed = terms(setup(DeepSpeedOptions(kind="deepspeed", stage=2, offload_optimizer=True), 4))
    assert deepspeed["offload"] == pytest.approx(2 * num_bytes / 4 / 1e10 + 9 * num_bytes / 1e11)


@pytest.mark.parametrize(("stage", "times"), [(0, 1.5), (1, 1.5 + 0.75), (2, 1.5 + 0.75)])
def test_deepspeed_waits_for_its_collectives(stage: Any, times: float) -> None:
    step = terms(setup(DeepSpeedOptions(kind="deepspeed", stage=stage), 4))
    assert step["communication_exposed"] == pytest.approx(times * 4 * 109_483_778 / 1e11)


@pytest.mark.parametrize(("stage", "copies"), [(0, 4), (1, 4), (2, 4), (3, 4 + 2)])
def test_deepspeed_copies_gradients_into_a_bucket_and_out_of_it(stage: Any, copies: int) -> None:
    slow = ROUND.replaced(figures(elementwise=1e11).by_name)
    whole = {"max_live_parameters": 10**9, "param_persistence_threshold": 0} if stage == 3 else {}
    backward_s = terms(setup(DeepSpeedOptions(kind="deepspeed", stage=stage, **whole), 4), slow)["backward"]
    # Each copy reads and writes; stage 3 copies gathered weights too, once for both passes.
    assert backward_s - terms(SINGLE, slow)["backward"] == pytest.approx(copies * 4 * 109_483_778 / 1e11)


@pytest.mark.parametrize(
    ("strategy", "figure", "number", "term"),
    [
        # 12 blocks and the rest; 201 parameters.
        (Zero3Options(kind="zero3"), "hooks__unit", 13, "communication_exposed"),
        (DeepSpeedOptions(kind="deepspeed", stage=2), "hooks__tensor", 201, "backward"),
        (DeepSpeedOptions(kind="deepspeed", stage=3), "hooks__gather", 201, "backward"),
    ],
)
def test_python_of_engines_counts_where_the_host_is_not_ahead(
    strategy: Strategy, figure: str, number: int, term: str
) -> None:
    way, local_step = setup(strategy, 4), terms(SINGLE)
    # Nothing is launched in ROUND's passes that takes time: the host is ahead by all of them.
    ahead = local_step["forward"] + local_step["backward"]
    slow, quick = (ROUND.replaced(figures(**{figure: (ahead + extra) / number}).by_name) for extra in (0.5, -0.01))
    assert terms(way, slow)[term] - terms(way)[term] == pytest.approx(0.5)
    assert terms(way, quick) == terms(way)
    assert terms(setup(DDPOptions(kind="ddp"), 4), slow) == terms(setup(DDPOptions(kind="ddp"), 4))


@pytest.mark.parametrize(("stage", "seconds"), [(0, 0.0), (1, 0.0), (2, 201 * 1e-3), (3, 201 * 3e-3)])
def test_a_device_waits_for_each_parameter_of_deepspeed(stage: Literal[0, 1, 2, 3], seconds: float) -> None:
    # Also where the host is ahead of the device; in each micro-batch.
    waiting = ROUND.replaced(figures(wait__reduce=1e-3, wait__gather=3e-3).by_name)
    for steps in (1, 2):
        way = replace(setup(DeepSpeedOptions(kind="deepspeed", stage=stage), 4), grad_accum_steps=steps)
        longer = terms(way, waiting)["backward"] - terms(way)["backward"]
        assert longer == pytest.approx(steps * seconds)


def test_idle_host_time_is_used_only_once() -> None:
    way, local_step = setup(Zero3Options(kind="zero3"), 4), terms(SINGLE)
    ahead = local_step["forward"] + local_step["backward"]
    # 4 rows take as long as the host is ahead, and FSDP2's Python takes a quarter of that.
    both = ROUND.replaced(figures(loader=ahead / 4, hooks__unit=ahead / 4 / 13).by_name)
    assert terms(way, ROUND.replaced(figures(loader=ahead / 4).by_name))["get_batch"] == pytest.approx(0, abs=1e-9)
    assert terms(way, both)["get_batch"] == pytest.approx(ahead / 4)
    assert terms(way, both)["communication_exposed"] == pytest.approx(terms(way)["communication_exposed"])


def test_loading_counts_without_workers_or_idle_host() -> None:
    slow = ROUND.replaced(figures(loader=1.0).by_name)
    local_step = terms(SINGLE)
    computing = local_step["forward"] + local_step["backward"]
    # 4 rows a second each; the host makes them while the device computes.
    assert terms(SINGLE, slow)["get_batch"] == pytest.approx(4 - computing)
    hiding = slow.replaced(figures(loader__hiding=0.01).by_name)
    # And 10 ms for each of 512 tokens.
    get_batch_s = terms(SINGLE, hiding, hides_words=True)["get_batch"]
    assert get_batch_s == pytest.approx(4 + 5.12 - computing)
    rest = sum(local_step.values())
    assert terms(SINGLE, slow, num_workers=2)["get_batch"] == pytest.approx(2 - rest)
    assert terms(SINGLE, slow, num_workers=64)["get_batch"] == 0


def test_interval_follows_the_bounds_of_the_constants() -> None:
    sure = step_time(StepCase(bert_base(), SINGLE, machine(), JOB))[0]
    assert sure is not None
    assert sure.total.low == pytest.approx(sure.total.value) == pytest.approx(sure.total.high)
    unsure = ROUND.replaced({"product.fp32": Bounded(1e12, 0.5e12, 2e12)})
    step = step_time(StepCase(bert_base(), SINGLE, machine(unsure), JOB))[0]
    assert step is not None
    half = terms(
        SINGLE,
        figures(**{name.replace(".", "__"): ROUND[name].value for name in ROUND.by_name}).replaced(
            figures(product__fp32=0.5e12).by_name
        ),
    )
    assert step.total.high == pytest.approx(sum(half.values()))
    assert step.total.low < step.total.value < step.total.high


def test_no_time_when_a_constant_is_unknown() -> None:
    assert step_time(StepCase(bert_base(), SINGLE, machine(None), JOB))[0] is None
    assert "--measured RUN" in (step_time(StepCase(bert_base(), SINGLE, machine(None), JOB))[1] or "")
    bf16 = replace(SINGLE, precision=POLICIES["bf16"])
    assert step_time(StepCase(bert_base("bf16"), bf16, find_machine("v100-16gb"), JOB))[0] is None
    assert "product.bf16" in (step_time(StepCase(bert_base("bf16"), bf16, find_machine("v100-16gb"), JOB))[1] or "")
    assert step_time(StepCase(bert_base(), SINGLE, machine(), JOB))[1] is None


def test_own_key_errors_are_raised(monkeypatch):
    """Only figures that are not known make a time unknown: a KeyError from anywhere else is an error."""

    def broken(work):
        raise KeyError("a typing error")

    monkeypatch.setitem(KINDS, "single", replace(KINDS["single"], seconds=broken))
    with pytest.raises(KeyError, match="typing error"):
        step_time(StepCase(bert_base(), SINGLE, machine(), JOB))
    with pytest.raises(KeyError, match="lnk") as caught:
        ROUND["lnk"]
    assert caught.type is not UnknownConstant


def test_ranks_that_share_cores_slow_each_other_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cpu = replace(machine(), is_cuda=False, num_cores=1.0)
    local_step = step_time(StepCase(bert_base(), SINGLE, cpu, JOB))[0]
    both = step_time(StepCase(bert_base(), setup(DDPOptions(kind="ddp"), 2), cpu, JOB))[0]
    assert local_step is not None
    assert both is not None
    assert both.terms["forward"] == pytest.approx(2 * local_step.terms["forward"])


def test_an_empty_pass_takes_no_time() -> None:
    assert pass_seconds(Phase().operations, ROUND, launch="launch.forward", tf32=False, is_cuda=True) == (0, 0)
