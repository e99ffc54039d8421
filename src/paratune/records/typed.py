"""run.json and summary.json as typed values, which everything that reads a record uses.

A number that was not measured is absent or null, and None here; a part that was not recorded is empty. A value of
another type, or a lost part that every run has (`REQUIRED`), makes the record damaged. Fields that this module does not
name are kept, unchecked, except in groups of numbers, such as the sizes of a step.
"""

import json
import math
from functools import cache
from typing import Annotated, Any, ClassVar, NotRequired

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core.core_schema import ValidationInfo
from typing_extensions import TypedDict  # that of typing only from Python 3.12 on

from paratune.base.text import plain
from paratune.errors import CheckpointError

LARGEST = 1e60
"""Numbers of a record that are larger, or below its inverse and not 0, count as unknown: no measurement gives them, and
squares of their variances are out of the range of numbers."""


def _measured(value: Any) -> Any:
    is_number = type(value) is float and value != 0 and math.isfinite(value)
    return None if is_number and not 1 / LARGEST < abs(value) < LARGEST else value


Number = Annotated[Annotated[int, Field(gt=-(2**64), lt=2**64)] | float | None, BeforeValidator(_measured)]
Numbers = dict[str, Number]
# Scores by split and metric; a split whose scores are null has none.
_NOT_NULL = BeforeValidator(
    lambda value: {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
)
Scores = Annotated[dict[str, Numbers], _NOT_NULL]


class RecordPart(BaseModel):
    """A JSON object of a record."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _absent(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            assert info.field_name is not None
            return cls.model_fields[info.field_name].get_default(call_default_factory=True)
        return value


class RecordedStrategy(RecordPart):
    kind: str | None = None
    options: dict[str, Any] = {}
    traits: dict[str, Any] = {}


class BatchSizes(RecordPart):
    """Samples of a step."""

    global_batch_size: Number = None
    micro_batch_size: Number = None
    grad_accum_steps: Number = None
    layout: str | None = None
    changes: list[dict[str, Any]] = []  # sizes after the memory ran out


class TaskFacts(RecordPart):
    kind: str | None = None
    glue: str | None = None
    labels: list[Any] | None = None
    metrics: list[str] = []  # headline metrics, the most important one first


class RecordedData(RecordPart):
    """A split."""

    source: str | None = None
    fingerprint: str | None = None
    num_rows: Number = None
    num_pseudo: Number = None
    num_dropped: dict[str, int] = {}
    num_tokens: Number = None


class RecordedModel(RecordPart):
    name: str | None = None
    architecture: str | None = None
    num_parameters: Number = None
    num_trainable: Number = None
    size_bytes: Number = None
    init_fingerprint: str | None = None


class StepPlan(RecordPart):
    num_steps: Number = None
    steps_per_epoch: Number = None
    num_epochs: Number = None
    batches_per_epoch: Number = None
    num_batches: Number = None


class RunFile(RecordPart):
    """run.json: what was trained, and on what."""

    NAME: ClassVar[str] = "run"

    run_id: str | None = None
    created: str | None = None
    kind: str | None = None
    config: dict[str, Any] = {}
    config_origin: dict[str, Any] = {}
    hardware: list[dict[str, Any]] = []  # facts of each node
    versions: dict[str, Any] = {}
    code: dict[str, Any] = {}
    command: list[str] = []
    directory: str | None = None
    job: dict[str, Any] = {}  # of Slurm
    world_size: Number = None
    device: str | None = None
    num_threads: Number = None
    environment: dict[str, Any] = {}
    environment_unset: list[str] = []
    strategy: RecordedStrategy = RecordedStrategy()
    loader: Numbers = {}
    batch: BatchSizes = BatchSizes()
    seed: Number = None
    task: TaskFacts = TaskFacts()
    own_code: dict[str, Any] = {}
    teachers: list[dict[str, Any]] = []
    grades: list[Any] | None = None  # scores that essays may get
    data: dict[str, RecordedData | None] = {}
    model: RecordedModel = RecordedModel()
    plan: StepPlan = StepPlan()
    sessions: list[dict[str, Any]] = []  # what each session of a resumed run sets anew
    began: str | None = None  # of a session
    step: Number = None  # of a session: the last step before it


class Times(RecordPart):
    startup_s: Number = None
    tokenize_s: Number = None
    evaluate_s: Number = None
    checkpoint_s: Number = None
    train_s: Number = None  # all steps, of the slowest rank
    total_s: Number = None


class Throughput(RecordPart):
    """Rates of the measured steps: totals over totals, without warm-up."""

    samples_per_s: Number = None
    tokens_per_s: Number = None
    padded_tokens_per_s: Number = None
    padding_share: Number = None
    num_steps_measured: Number = None


class PhaseTimes(RecordPart):
    """Measured steps, mean over ranks."""

    total_s: Number = None
    median_ms: Number = None
    p10_ms: Number = None
    p90_ms: Number = None
    share: Number = None


class Phases(RecordPart):
    """Their sum is the wall time of a step."""

    get_batch: PhaseTimes = PhaseTimes()
    forward: PhaseTimes = PhaseTimes()
    backward: PhaseTimes = PhaseTimes()
    optimizer: PhaseTimes = PhaseTimes()
    other: PhaseTimes = PhaseTimes()


class Utilisation(RecordPart):
    kind: str | None = None
    mean: Number = None
    p10: Number = None
    p90: Number = None
    machine_mean: Number = None
    devices: list[dict[str, Any]] = []
    energy_j: Number = None
    energy_source: str | None = None
    reason: str | None = None


class RankFacts(RecordPart):
    peak_memory_bytes: Number = None
    device: str | None = None
    phases_total_s: Numbers = {}


class RecordedMemory(RecordPart):
    kind: str | None = None  # rss or cuda_allocated
    largest_bytes: Number = None
    sum_bytes: Number = None


class Best(RecordPart):
    metric: str | None = None


class Noise(RecordPart):
    """See `paratune.records.efficiency`."""

    value: Number = None
    standard_error: Number = None
    trace: Number = None
    squared_norm: Number = None
    num_steps: Number = None
    reason: str | None = None


class NoiseScale(Noise):
    preconditioned: Noise = Noise()


class Communication(RecordPart):
    share: Number = None
    exposed_share: Number = None
    time_ms_per_step: Number = None
    num_steps: Number = None
    reason: str | None = None


class RecordedProfile(RecordPart):
    num_steps: Number = None
    reason: str | None = None


class Stragglers(RecordPart):
    slowest_rank: Number = None
    slowdown: Number = None
    wait_share: Number = None
    reason: str | None = None


class RecordedConstant(RecordPart):
    """The best answer without a model, such as the majority class."""

    predicts: str | None = None
    scores: Scores = {}


class RecordedWork(RecordPart):
    model_flops_per_s: Number = None
    peak_source: str | None = None
    mfu: Number = None
    reason: str | None = None


class Inference(RecordPart):
    """Of a smaller form: forward passes of texts on the CPU, one after the other."""

    latency_p50_ms: Number = None
    latency_p95_ms: Number = None
    weights_bytes: Number = None


class RecordedPrediction(RecordPart):
    memory_bytes: Number = None
    memory_terms: dict[str, Any] = {}
    step_s: Annotated[list[float], Field(min_length=3, max_length=3)] | None = None
    """Predicted mean step, and the limits of its interval."""
    reason: str | None = None


class Fitted(RecordPart):
    """A baseline without steps, such as TF-IDF with logistic regression."""

    estimator: str | None = None
    num_features: Number = None
    c: Number = None
    chosen_by: dict[str, str | None] = {}  # split and metric
    candidates: list[dict[str, Any]] = []


class SliceScore(TypedDict):
    value: float | None
    interval: NotRequired[Annotated[list[float], Field(min_length=2, max_length=2)] | None]
    """Its 95% interval; null for few rows."""


class Slice(TypedDict):
    value: str
    detail: str | None
    num_rows: int
    scores: dict[str, SliceScore]  # by metric


Slices = dict[str, dict[str, list[Slice]]]  # the slices of a summary, by split and column


class LengthBias(TypedDict):
    pearson: Number
    quintiles: list[Numbers]


class RecordedNeighbours(RecordPart):
    """Runs of the same `paratune sweep --parallel` at the same time."""

    names: list[str] = []
    is_constant: bool | None = None


class Summary(RecordPart):
    """summary.json: what was measured; it exists only in a finished run."""

    NAME: ClassVar[str] = "summary"

    finished: str | None = None
    num_steps: Number = None
    stop_reason: str | None = None
    num_interruptions: Number = None
    num_requeued: Number = None
    num_restarts: Number = None
    num_skipped_steps: Number = None
    neighbours: RecordedNeighbours | None = None
    kept_step: Number = None
    time: Times = Times()
    throughput: Throughput = Throughput()
    phases: Phases = Phases()
    step_ms: Numbers = {}
    pipeline: Numbers = {}
    utilisation: Utilisation = Utilisation()
    ranks: list[RankFacts] = []
    memory: RecordedMemory = RecordedMemory()
    loss: Numbers = {}
    best: Best = Best()
    recorder: Numbers = {}
    noise_scale: NoiseScale = NoiseScale()
    communication: Communication = Communication()
    profile: RecordedProfile = RecordedProfile()
    stragglers: Stragglers = Stragglers()
    scores: Scores = {}
    baseline: RecordedConstant = RecordedConstant()
    flops: RecordedWork = RecordedWork()
    inference: Inference = Inference()
    prediction: RecordedPrediction = RecordedPrediction()
    fitted: Fitted = Fitted()
    confusion: dict[str, Any] = {}
    slices: Slices = {}
    length_bias: dict[str, LengthBias] = {}
    raters: dict[str, list[dict[str, Any]]] = {}


_OF_RUN = ("run_id", "config", "hardware", "versions", "world_size", "strategy.kind", "batch", "seed", "task.kind")
_OF_STEPS = ("num_steps", "time", "throughput", "phases", "step_ms", "loss")
REQUIRED = {"run": (*_OF_RUN, "data.train", "model", "plan"), "summary": ("run_id", "ranks", "memory", "scores")}
REQUIRED |= {f"summary of {kind}": _OF_STEPS for kind in ("full", "probe", "trainer")}
"""Dotted keys that a file has in every run; the summary of a run with optimizer steps has more of them."""


_adapter = cache(TypeAdapter)


def checked(kind: Any, record: Any, place: object, remedy: str) -> Any:
    """Return JSON data as a value of a type.

    Args:
        kind: A model, a TypedDict, a dataclass, or a union of these.
        place: The file of the record, for the message.
        remedy: What to do about a damaged record, for the message.

    Raises:
        CheckpointError: A value has another type (`run.damaged`): the message has its key.
    """
    # As JSON, in which a strict reader takes lists for tuples. Bytes of a file name that are no UTF-8 are kept as lone
    # surrogates, which the reader refuses.
    text = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first, value, keys = error.errors(include_url=False)[0], record, []
        for part in first["loc"]:  # after the keys of the record it has the types that were tried
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                break
            keys.append(str(part))
        is_number = first["type"].partition("_")[0] in ("int", "float", "finite", "greater", "less")
        problem = "a finite number or null is needed" if is_number else first["msg"]
        found, is_missing = f"is {plain(repr(first['input'])[:80])} ({plain(problem)})", first["type"] == "missing"
        key = ".".join([*keys, str(first["loc"][-1])] if is_missing else keys)
        message = f"{plain(place)} is damaged: {plain(key)} {'is missing' if is_missing else found}; {remedy}"
        raise CheckpointError(message, code="run.damaged", path=place, key=key, value=first["input"]) from error
