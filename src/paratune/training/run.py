"""Runs one process's part of a run: from a configuration to the summary.

The order is that of the functions: `train` prepares and connects the processes, then `_place_run`,
`_record_and_train`, `_train`.
"""

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from paratune import hardware, records
from paratune.base.system_errors import forward_error
from paratune.base.units import format_number
from paratune.config.batch_size import ResolvedBatch
from paratune.config.hints import advice
from paratune.config.load import LoadedConfig
from paratune.config.own_code import described_error, own_code_record
from paratune.config.sections import run_path
from paratune.console import Display, log_to_file
from paratune.data.loader import TrainBatches
from paratune.data.order import steps_per_epoch
from paratune.data.tokens import cache_folder
from paratune.data.workers import start_server
from paratune.engine.evaluate import Interrupted
from paratune.engine.keeper import RunKeeper
from paratune.engine.loop import Loop, Progress, save_and_stop
from paratune.engine.loop import run as run_loop
from paratune.engine.memory import peak_memory
from paratune.engine.noise import NoiseMeter
from paratune.engine.phases import WatchedClock, make_clock
from paratune.engine.probes import make_probe
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.sampler import Sampler
from paratune.engine.stop import StopRequest, before_the_first_step
from paratune.errors import CheckpointError, ConfigError, Stopped, coded
from paratune.models.load import log_new_weights
from paratune.models.packed import BatchLayout
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.diagnosis import JOINING, PREPARING
from paratune.processes.place import local_world_size, place_from_environment
from paratune.processes.progress import RankProgress, working
from paratune.processes.watchdog import watching
from paratune.records.run_folder import Mode, check_same_run, take_folder
from paratune.strategies.protocol import on_rank_0
from paratune.strategies.whole import training_dtypes
from paratune.trackers.adapters import TrackedRun
from paratune.trackers.session import TrackerSession
from paratune.training.baseline import fit_baseline
from paratune.training.callbacks import CallbackSession, make_callbacks
from paratune.training.evaluations import SplitEvaluations
from paratune.training.finish import MakeBatches, write_results
from paratune.training.flops import WorkCount
from paratune.training.memory import Activity, MemoryGuard, StepBatches, device_facts, reports_out_of_memory
from paratune.training.micro_batch import choose_micro_batch
from paratune.training.prepare import (
    Prepared,
    batch_sizes,
    initial_model,
    make_strategy,
    optimizer_factory,
    prepare,
    run_batch_layout,
    train_batches,
    worker_settings,
)
from paratune.training.record import (
    add_session,
    device_name,
    gather_nodes,
    model_facts,
    run_record,
    session_record,
    tracked_config,
)
from paratune.training.rendezvous import check_same, process_group
from paratune.training.resume import resume
from paratune.training.steps import check_steps, first_step, is_due, noise_interval, noise_unavailable_reason, num_steps
from paratune.training.values import PlacedRun, Session

log = logging.getLogger(__name__)
MAX_MESSAGE = 2000
"""Longest error message in the event log, in characters."""


def train(
    loaded: LoadedConfig, *, mode: Mode = "new", stop: StopRequest | None = None, began: float | None = None
) -> dict[str, Any]:
    """Run a configuration to its end in this process, which is one of the processes of the run.

    Args:
        loaded: The configuration and the origin of its values.
        mode: `new`, `resume` or `overwrite`; for a run folder that exists.
        stop: An installed stop request; None installs one here, which only the main thread may do.
        began: `time.perf_counter()` at the start of the command.

    Returns:
        The content of summary.json, on every rank.

    Raises:
        ParatuneError: The run failed; no file is half written.
        Stopped: A signal stopped the run in an orderly way.
    """
    began = time.perf_counter() if began is None else began
    stop = stop or StopRequest().install()
    place = place_from_environment()
    rank_progress = RankProgress()
    display = Display(speaks=place.rank == 0, listener=rank_progress.report)
    if loaded.config.data.num_workers:
        start_server()  # it imports PyTorch while this process reads the data
    with watching(
        rank_progress, place.rank, place.world_size, run_path(loaded.config), loaded.config.run.hang_timeout_s
    ):
        rank_progress.begin(PREPARING)
        prepared = prepare(loaded, place, stop, display)
        if loaded.config.baseline is not None:
            return fit_baseline(prepared, loaded.config.baseline, mode, stop, rank_progress, began)
        rank_progress.begin(JOINING)
        with process_group(prepared, stop), prepared.switched():
            return _run(Session(prepared, mode, stop, display, rank_progress, began))


def _run(session: Session) -> dict[str, Any]:
    activity = Activity(session.rank_progress)
    run = _place_run(session, activity)
    # After these checks, so that a mistake in the configuration or a model that does not fit leaves no run folder.
    rank, reduce = run.strategy.layout.rank, run.strategy.reduce
    callbacks = on_rank_0(rank, reduce, lambda: make_callbacks(run.config.run.callbacks)) or []
    lock = on_rank_0(rank, reduce, lambda: take_folder(run.folder, run.mode))
    run.rank_progress.set_run_folder(run.folder)
    try:
        with reports_out_of_memory(MemoryGuard(run.prepared, run.batch, activity, model=run.model, holds_folder=True)):
            return _record_and_train(run, activity, callbacks)
    finally:
        if lock is not None:
            lock.release()


def _place_run(session: Session, activity: Activity) -> PlacedRun:
    """Choose the sizes of the batches, load the model, and give it to the strategy. Collective."""
    prepared, config = session.prepared, session.config
    strategy = make_strategy(prepared)
    batch = batch_sizes(prepared, strategy.layout)
    epoch_steps = steps_per_epoch(prepared.splits["train"].num_samples, batch.global_batch_size)
    last_step = num_steps(config, epoch_steps)
    check_steps(config, last_step)
    first = first_step(config, last_step, epoch_steps, logs=session.is_writer and session.mode != "resume")
    session.rank_progress.begin(activity.doing)
    if session.stop.agreed(strategy):
        raise Stopped(before_the_first_step(session.stop.signal_name(), "preparing"), code="stopped.signal")
    if session.mode == "resume":
        on_rank_0(strategy.layout.rank, strategy.reduce, lambda: _check_same_run(session, batch))
    with reports_out_of_memory(MemoryGuard(prepared, batch, activity)):
        choice = choose_micro_batch(
            prepared,
            strategy,
            batch,
            resumed=session.folder if session.mode == "resume" else None,
            rank_progress=session.rank_progress,
            display=session.display,
        )
    sizes = choice.sizes
    if session.is_writer and choice.reason:
        log.info(
            "micro-batches of %d, %d per step and rank: %s",
            sizes.micro_batch_size,
            sizes.grad_accum_steps,
            choice.reason,
        )
    with reports_out_of_memory(MemoryGuard(prepared, sizes, activity)):
        model, batch_layout, facts = _load_model(session)
    optimizer = optimizer_factory(prepared, model, last_step)
    # Before `prepare`: afterwards a rank may have only shards, whose FLOPs cannot be counted.
    work = WorkCount(model) if session.is_writer else None
    with reports_out_of_memory(MemoryGuard(prepared, sizes, activity, model=model)):
        choice.strategy.prepare(model, find_blocks(model), optimizer)
    return PlacedRun(
        **vars(session),
        strategy=choice.strategy,
        batch=sizes,
        batch_reason=choice.reason,
        num_steps=last_step,
        steps_per_epoch=epoch_steps,
        first_step=first,
        model=model,
        model_facts=facts,
        batch_layout=batch_layout,
        evaluations=SplitEvaluations(prepared, choice.strategy.layout, batch_layout),
        optimizer=optimizer,
        work=work,
    )


def _check_same_run(session: Session, batch: ResolvedBatch) -> None:
    """Compare data, batch size and own code with those of the run to resume; the command has compared the options."""
    check_same_run(
        session.folder,
        session.prepared.loaded.values,
        global_batch_size=batch.global_batch_size,
        fingerprints={name: split.fingerprint for name, split in session.prepared.splits.items()},
        teachers={about["name"]: about["inputs_sha256"] for about in session.prepared.teachers},
        own_code=own_code_record(session.config),
    )


def _load_model(session: Session) -> tuple[TaskModel, BatchLayout, dict[str, Any]]:
    """Return the model, the layout of its batches and its facts, which are the same on all ranks. Collective."""
    name, model = session.config.model.name, initial_model(session.prepared)
    batch_layout = run_batch_layout(session.prepared, model)
    if session.is_writer and batch_layout.reason:
        log.info("batches are %s: %s", batch_layout.kind, batch_layout.reason)
    # On every rank: strategies that shard take each shard from their own copy, and would not notice a difference.
    with working("hash the weights"):
        prepared = session.prepared
        facts = model_facts(model, name, training_dtypes(model, prepared.precision, prepared.traits))
    check_same(
        {
            f"initial weights of {name} (SHA-256)": facts["init_fingerprint"],
            "batch.layout": batch_layout.kind,
            "layout of packed rows in the model": str(model.entry),
        }
    )
    return model, batch_layout, facts


def _record_and_train(run: PlacedRun, activity: Activity, callbacks: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Write the record of the session, train, and return the summary."""
    log_to_file(run.folder, run.prepared.place.rank)
    progress = Progress()
    if run.mode == "resume":
        progress = resume(run.strategy, run.folder, is_writer=run.is_writer)
    progress.began = run.began
    is_new = progress.step == 0
    if is_new:  # later, the checkpoint has replaced all initial weights
        log_new_weights(run.model, run.config.model.name)
        progress.step = run.first_step
    record = _write_record(run, progress.step, is_new=is_new)
    # Only rank 0, which has the record, sends values to trackers.
    options = {} if record is None else tracked_config(run.prepared, record, run.model_facts)
    tracked = TrackedRun(run.folder.name, run.folder, progress.step, options)
    with TrackerSession(run.config.trackers if run.is_writer else None, tracked) as trackers:
        called = CallbackSession(callbacks, folder=run.folder, num_steps=run.num_steps, step=progress.step)
        return _train_with_events(run, activity, progress, trackers, called)


def _train_with_events(
    run: PlacedRun, activity: Activity, progress: Progress, trackers: TrackerSession, callbacks: CallbackSession
) -> dict[str, Any]:
    """Train and write the results; write all events to the event log, also a failure."""

    def listen(event: str, values: Mapping[str, Any]) -> None:
        trackers.log_event(event, values)
        callbacks.log_event(event, values)

    events = records.EventLog(run.folder, run.prepared.place.rank, listener=listen)
    try:
        loop, keeper, guard, make_batches = _train(run, activity, progress, events)
        with reports_out_of_memory(guard):
            try:
                summary = write_results(run, loop, keeper, guard, make_batches, progress)
            except Interrupted:
                # The best weights may already be loaded, and are saved. All steps are done, so a resumed run needs no
                # other weights.
                save_and_stop(loop, progress)
        trackers.log_summary(summary)
        callbacks.end(summary)
        return summary
    except SystemExit as error:  # of code that is called without a guard, such as an own strategy
        failure = ConfigError(f"code outside paratune raised {described_error(error)}", code="own_code.raised")
        note_failure(events, failure)
        raise failure from error
    except Exception as error:
        explained = forward_error(error)
        if not isinstance(error, Stopped):
            note_failure(events, explained or error)
        if explained is not None:
            raise explained from error
        raise
    finally:
        events.close()


def _train(
    run: PlacedRun, activity: Activity, progress: Progress, events: records.EventLog
) -> tuple[Loop, RunKeeper, MemoryGuard, MakeBatches]:
    """Run the remaining steps."""
    config, prepared, strategy = run.config, run.prepared, run.strategy
    clock = WatchedClock(make_clock(prepared.device), run.rank_progress)
    reason = noise_unavailable_reason(run.batch, strategy.layout, compiles=config.train.compile)
    interval = noise_interval(config.measure, run.num_steps)
    noise = NoiseMeter(strategy, interval, reason)

    def make_batches(sizes: ResolvedBatch) -> TrainBatches:
        every = None if noise.reason is not None else interval
        return train_batches(prepared, strategy.layout, sizes, run.batch_layout, compare_every=every)

    sampler = _start_sampler(prepared, progress)
    with closing(sampler), run.display.bar(config.run.name or "", run.num_steps) as bar:
        recorder = Recorder(
            events,
            strategy,
            clock,
            warmup_steps=config.measure.warmup_steps,
            log_every=config.measure.log_every,
            peak_memory=lambda: peak_memory(prepared.device),
            on_log=lambda event: bar.update(event["step"], _progress_text(event, strategy.layout.world_size)),
            on_step=bar.update,
            sampler=sampler,
        )
        activity = Activity(run.rank_progress, recorder, activity.doing)
        keeper = RunKeeper(
            config=config,
            strategy=strategy,
            model=run.model,
            device=prepared.device,
            checkpoints=run.folder / records.CHECKPOINTS_FOLDER,
            split_batches=run.evaluations.batches,
            score=run.evaluations.score,
            recorder=recorder,
            stop=run.stop,
            display=run.display,
            num_steps=run.num_steps,
            steps_per_epoch=run.steps_per_epoch,
            set_activity=activity.set,
        )
        steps = range(progress.step, run.num_steps)
        batches = StepBatches(make_batches, run.batch, steps, activity.set, worker_settings(prepared))
        guard = MemoryGuard(
            prepared, run.batch, activity, model=run.model, batches=batches, recorder=recorder, holds_folder=True
        )
        progress.seconds["startup"] += time.perf_counter() - run.began - prepared.tokenize_s
        progress.seconds["tokenize"] += prepared.tokenize_s
        loop = Loop(
            strategy=strategy,
            optimizer=run.optimizer,
            batches=batches,
            keeper=keeper,
            recorder=recorder,
            clock=clock,
            stop=run.stop,
            device=prepared.device,
            seed=config.run.seed,
            num_steps=run.num_steps,
            steps_per_epoch=run.steps_per_epoch,
            max_grad_norm=config.train.max_grad_norm,
            evaluation_due=partial(_is_evaluation_due, run),
            checkpoint_due=partial(_is_checkpoint_due, run),
            noise=noise,
            profiler=StepProfiler(
                prepared.device,
                config.measure.profile_steps,
                warmup_steps=config.measure.warmup_steps,
                folder=run.folder,
                rank=strategy.layout.rank,
                exchanges=strategy.layout.world_size > 1,
            ),
            saves_when_stopped=not config.measure.probe,
            shrink=guard.shrink,
        )
        with reports_out_of_memory(guard), closing(batches):
            run_loop(loop, progress)
        recorder.flush()
    recorder.cost_s += sampler.cost_s
    recorder.add("end", step=progress.step)
    return loop, keeper, guard, make_batches


def _start_sampler(prepared: Prepared, progress: Progress) -> Sampler:
    """Start a sampler of this rank's device and return it."""
    measure = prepared.config.measure
    interval_s = measure.sample_every_s
    probe, reason = (None, None) if interval_s is None else make_probe(prepared.device, prepared.place)
    return Sampler(
        probe,
        name=device_name(prepared.device),
        interval_s=interval_s,
        reason=reason,
        step=progress.step + 1,
        is_warmup=measure.warmup_steps > 0,
    )


def _is_evaluation_due(run: PlacedRun, step: int) -> bool:
    section = run.config.evaluate
    if "validation" not in run.prepared.splits or step == 0 or run.config.measure.probe:
        return False
    return step == run.num_steps or is_due(step, section.every, section.steps, run.steps_per_epoch)


def _is_checkpoint_due(run: PlacedRun, step: int) -> bool:
    section = run.config.checkpoint
    if step == 0 or section.every == "never" or run.config.measure.probe:
        return False
    # Also after the last step: writing the model comes later and can fail on a full disk.
    return step == run.num_steps or is_due(step, section.every, section.steps, run.steps_per_epoch)


def _write_record(run: PlacedRun, step: int, *, is_new: bool) -> dict[str, Any] | None:
    """Write run.json, or add this session to it; return the session on rank 0. Collective."""
    prepared, folder, batch = run.prepared, run.folder, run.batch
    data_folder = cache_folder(run.config.data.cache_dir)
    nodes = gather_nodes(folder, data_folder, local_rank=prepared.place.local_rank)
    if not run.is_writer:
        return None
    lines = _advice(run, nodes)
    for line in lines:
        log.warning("%s", line, extra=coded("run.advice"))
    record = session_record(
        prepared,
        batch=batch,
        batch_layout=run.batch_layout,
        nodes=nodes,
        step=step,
        batch_reason=run.batch_reason,
        advice=lines,
    )
    if not is_new:
        add_session(folder, record)
        return record
    plan = {
        "num_steps": run.num_steps,
        "steps_per_epoch": run.steps_per_epoch,
        "num_epochs": run.num_steps / run.steps_per_epoch,
        "batches_per_epoch": batch.grad_accum_steps * run.steps_per_epoch,
        "num_batches": batch.grad_accum_steps * run.num_steps * run.strategy.layout.data_world_size,
    }
    records.write_json(
        folder / records.RUN_FILE, run_record(prepared, folder, session=record, model=run.model_facts, plan=plan)
    )
    return record


def _advice(run: PlacedRun, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    prepared = run.prepared
    return advice(
        prepared.traits,
        run.config,
        run.batch,
        num_parameters=run.model_facts["num_parameters"],
        num_trainable=run.model_facts["num_trainable"],
        bytes_per_value=prepared.precision.param_dtype.itemsize,
        world_size=run.strategy.layout.world_size,
        num_local_ranks=local_world_size(prepared.place),
        num_cores=hardware.usable_cores(),
        **device_facts(prepared, nodes),
    )


def note_failure(events: records.EventLog, error: Exception) -> None:
    """Write the reason of a failure to the event log, which a killed run does not have; ignore a full disk."""
    with contextlib.suppress(CheckpointError):
        code = getattr(error, "code", None)
        events.add("failure", error=type(error).__name__, code=code, message=str(error)[:MAX_MESSAGE])
        events.flush()


def _progress_text(event: Mapping[str, Any], world_size: int) -> str:
    per_s = event["num_samples"] / event["wall_ms"] * 1000
    unit = "samples/s" if world_size == 1 else "samples/s per rank"
    return f"loss {event['loss']:.4f}  {format_number(per_s)} {unit}  epoch {event['epoch']:.2f}"
