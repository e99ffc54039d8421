"""A run, from the meeting of its processes to its summary: one process's part of it."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch

from paratune import hardware, records
from paratune.config.advice import JobSizes, advice
from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import LoadedConfig
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
from paratune.engine.memory import peak_memory_of
from paratune.engine.noise import NoiseMeter
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import WatchedClock, make_clock
from paratune.engine.probes import make_probe
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.sampler import Sampler
from paratune.engine.stop import StopRequest, before_the_first_step
from paratune.errors import CheckpointError, LaunchError, Stopped, coded
from paratune.hangs.pulse import Pulse, working
from paratune.hangs.verdict import MEETING, PREPARING
from paratune.hangs.watchdog import watching
from paratune.metrics.scores import is_better
from paratune.models.batch_layout import BatchLayout
from paratune.models.load import say_what_is_new
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.place import local_world_size, place_from_environment
from paratune.records.run_folder import Mode, check_same_run, take
from paratune.trackers.protocol import About
from paratune.trackers.session import TrackerSession
from paratune.train.baseline import fit_baseline
from paratune.train.evaluations import SplitEvaluations
from paratune.train.finish import Finish
from paratune.train.flops import WorkCount
from paratune.train.measured import why_no_noise
from paratune.train.meet import check_same, met
from paratune.train.memory import Activity, MemoryGuard, StepBatches, device_facts, explained
from paratune.train.micro_batch import choose_micro_batch
from paratune.train.prepare import (
    Prepared,
    batch_layout_of,
    batch_sizes,
    initial_model,
    make_strategy,
    prepare,
    train_batches,
    workers_of,
)
from paratune.train.record import (
    add_session,
    device_name,
    gather_nodes,
    model_facts,
    run_record,
    session_record,
    tracked_config,
)
from paratune.train.resume import resume
from paratune.train.steps import check_steps, is_due, num_steps

log = logging.getLogger(__name__)
MAX_MESSAGE = 2000
"""Characters of an error that the event log keeps."""
T = TypeVar("T")


def train(
    loaded: LoadedConfig, *, mode: Mode = "new", stop: StopRequest | None = None, began: float | None = None
) -> dict[str, Any]:
    """Run a configuration in this process, one of the run's, to its end.

    Args:
        loaded: The configuration and where its values came from.
        mode: new, resume or overwrite, for a run folder that exists.
        stop: Already installed; by default it is installed here, which only the main thread may do.
        began: `time.perf_counter()` of the start of the command.

    Returns:
        The content of summary.json, on every rank.

    Raises:
        ParatuneError: Of the kind that fits; nothing is half written.
        Stopped: A signal ended the run in good order.
    """
    began = time.perf_counter() if began is None else began
    stop = stop or StopRequest().install()
    place = place_from_environment()
    pulse = Pulse()
    display = Display(speaks=place.rank == 0, heard=pulse.goes_on)
    if loaded.config.data.num_workers:
        start_server()  # it imports PyTorch while this process reads the data
    with watching(pulse, place.rank, place.world_size, run_path(loaded.config), loaded.config.run.hang_timeout_s):
        pulse.begins(PREPARING)
        prepared = prepare(loaded, place, stop, display)
        if loaded.config.baseline is not None:
            return fit_baseline(prepared, loaded.config.baseline, mode, stop, pulse, began)
        pulse.begins(MEETING)
        with met(prepared, stop), prepared.switched():
            return _Run(prepared, mode, stop, display, began, pulse).to_the_end()


class _Run:
    """One process's part of a run, from the meeting of the processes to the summary."""

    def __init__(
        self,
        prepared: Prepared,
        mode: Mode,
        stop: StopRequest,
        display: Display,
        began: float,
        pulse: Pulse,
    ) -> None:
        self._pulse = pulse
        self._prepared = prepared
        self._config = prepared.config
        self._mode = mode
        self._stop = stop
        self._display = display
        self._began = began
        self._folder = run_path(self._config)
        self._is_writer = prepared.place.rank == 0
        self._strategy = make_strategy(prepared)
        self._batch = batch_sizes(prepared, self._strategy.layout)
        self._batch_reason: str | None = None
        self._batch_layout: BatchLayout
        self._noise: NoiseMeter
        self._evaluations: SplitEvaluations
        self._work: WorkCount | None = None
        """Of rank 0 only."""
        self._activity = Activity(pulse)
        self._memory = self._guard()
        self._steps_per_epoch = steps_per_epoch(prepared.splits["train"].num_samples, self._batch.global_batch_size)
        self._num_steps = num_steps(self._config, self._steps_per_epoch)
        check_steps(self._config, self._num_steps)

    def to_the_end(self) -> dict[str, Any]:
        with explained(lambda: self._memory):
            return self._to_the_end()

    def _guard(
        self,
        model: TaskModel | None = None,
        batches: StepBatches | None = None,
        recorder: Recorder | None = None,
        *,
        holds_folder: bool = False,
    ) -> MemoryGuard:
        """Return the guard of the part of the run that begins, with what there is by now."""
        return MemoryGuard(
            self._prepared,
            self._folder,
            self._batch,
            self._activity,
            model=model,
            batches=batches,
            recorder=recorder,
            holds_folder=holds_folder,
        )

    def _to_the_end(self) -> dict[str, Any]:
        config, prepared = self._config, self._prepared
        self._pulse.begins(self._activity.doing)
        if self._stop.agreed(self._strategy):
            raise Stopped(before_the_first_step(self._stop.said(), "preparing"), code="stopped.signal")
        self._on_writer(self._check_same_run)
        self._choose_micro_batch()
        model = initial_model(prepared)
        self._batch_layout = batch_layout_of(prepared, model)
        self._evaluations = SplitEvaluations(prepared, self._strategy.layout, self._batch_layout)
        if self._is_writer and (reason := self._batch_layout.reason):
            log.info("batches are %s: %s", self._batch_layout.kind, reason)
        # On every rank: rank 0 needs them for the record, and sharding would not notice other weights elsewhere.
        with working("hash the weights"):
            facts = model_facts(model, config.model.name)
        check_same(
            {
                f"initial weights of {config.model.name} (SHA-256)": facts["init_fingerprint"],
                "batch.layout": self._batch_layout.kind,
                "how packed rows enter the model": str(model.entry),
            }
        )
        optimizer = OptimizerFactory(config.train, self._num_steps)
        if self._is_writer:
            self._work = WorkCount(model)
        self._memory = self._guard(model)
        self._strategy.prepare(model, find_blocks(model), optimizer)
        lock = self._on_writer(lambda: take(self._folder, self._mode))
        self._memory = self._guard(model, holds_folder=True)
        self._pulse.holds(self._folder)
        try:
            log_to_file(self._folder, prepared.place.rank)
            progress = self._progress()
            progress.began = self._began
            if progress.step == 0:  # a checkpoint has them all
                say_what_is_new(model, config.model.name)
            session = self._write_record(progress.step, facts)
            with self._trackers(session, facts) as trackers:
                return self._logged(model, optimizer, progress, trackers)
        finally:
            if lock is not None:
                lock.release()

    def _trackers(self, session: Mapping[str, Any] | None, model: Mapping[str, Any]) -> TrackerSession:
        """Return the trackers of this session; rank 0, which has its record, is the only one to tell them."""
        if session is None:
            return TrackerSession(None, About(self._folder.name, self._folder, 0, {}))
        told = tracked_config(self._prepared, session, model)
        return TrackerSession(self._config.trackers, About(self._folder.name, self._folder, session["step"], told))

    def _logged(
        self, model: TaskModel, optimizer: OptimizerFactory, progress: Progress, trackers: TrackerSession
    ) -> dict[str, Any]:
        """Train, with everything that happens in the event log, a failure included."""
        events = records.EventLog(self._folder, self._prepared.place.rank, listener=trackers.event)
        try:
            with explained(lambda: self._memory):  # in here, where the event can still be written
                summary = self._train(model, optimizer, progress, events)
            trackers.result(summary)
            return summary
        except Exception as error:
            if not isinstance(error, Stopped):
                note_failure(events, error)
            raise
        finally:
            events.close()

    def _choose_micro_batch(self) -> None:
        choice = choose_micro_batch(
            self._prepared,
            self._strategy,
            self._batch,
            resumed=self._folder if self._mode == "resume" else None,
            pulse=self._pulse,
            display=self._display,
        )
        self._batch, self._batch_reason, self._strategy = choice.sizes, choice.reason, choice.strategy
        self._memory = self._guard()
        if self._is_writer and choice.reason:
            log.info(
                "micro-batches of %d, %d a step and rank: %s",
                choice.sizes.micro_batch_size,
                choice.sizes.grad_accum_steps,
                choice.reason,
            )

    def _write_record(self, step: int, model: dict[str, Any]) -> dict[str, Any] | None:
        """Write run.json, or add this session to it, and return the session on rank 0. Collective."""
        data_folder = cache_folder(self._config.data.cache_dir)
        local_rank = self._prepared.place.local_rank
        nodes = gather_nodes(self._strategy, self._folder, data_folder, local_rank=local_rank)
        if not self._is_writer:
            return None
        lines = self._advice(model, nodes)
        for line in lines:
            log.warning("%s", line, extra=coded("run.advice"))
        session = session_record(
            self._prepared,
            batch=self._batch,
            batch_layout=self._batch_layout,
            nodes=nodes,
            step=step,
            batch_reason=self._batch_reason,
            advice=lines,
        )
        if step > 0:
            add_session(self._folder, session)
            return session
        num_micro_steps = self._batch.grad_accum_steps
        plan = {
            "num_steps": self._num_steps,
            "steps_per_epoch": self._steps_per_epoch,
            "num_epochs": self._num_steps / self._steps_per_epoch,
            "batches_per_epoch": num_micro_steps * self._steps_per_epoch,
            "num_batches": num_micro_steps * self._num_steps * self._strategy.layout.data_world_size,
        }
        record = run_record(self._prepared, self._folder, session=session, model=model, plan=plan)
        records.write_run(self._folder, record)
        return session

    def _advice(self, model: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
        prepared = self._prepared
        job = JobSizes(
            num_parameters=model["num_parameters"],
            num_trainable=model["num_trainable"],
            bytes_per_value=prepared.precision.param_dtype.itemsize,
            world_size=self._strategy.layout.world_size,
            share=self._batch.share,
            num_micro_batches=self._batch.grad_accum_steps,
            is_per_device=self._config.batch.per_device is not None,
            num_workers=self._config.data.num_workers,
            num_local_ranks=local_world_size(prepared.place),
            num_cores=hardware.usable_cores(),
            **device_facts(prepared, nodes),
        )
        return advice(prepared.traits, job)

    def _check_same_run(self) -> None:
        """The command has compared the options; what the files hold and how the batch is shared is known here."""
        if self._mode == "resume":
            check_same_run(
                self._folder,
                self._prepared.loaded.values,
                global_batch_size=self._batch.global_batch_size,
                fingerprints={name: split.fingerprint for name, split in self._prepared.splits.items()},
            )

    def _on_writer(self, act: Callable[[], T]) -> T | None:
        """Rank 0 acts; the others wait for it, and share its fate when it cannot. Collective."""
        result, error = None, None
        if self._is_writer:
            try:
                result = act()
            except Exception as problem:
                error = problem
        failed = self._strategy.reduce(torch.tensor([float(error is not None)]), "max")
        if error is not None:
            raise error
        if float(failed):
            raise LaunchError(
                "rank 0 could not use the run folder; its message has the reason", code="launch.rank_0_failed"
            )
        return result

    def _progress(self) -> Progress:
        if self._mode != "resume":
            return Progress()
        return resume(self._strategy, self._folder, is_writer=self._is_writer)

    def _train(
        self, model: TaskModel, optimizer: OptimizerFactory, progress: Progress, events: records.EventLog
    ) -> dict[str, Any]:
        config, prepared, strategy = self._config, self._prepared, self._strategy
        clock = WatchedClock(make_clock(prepared.device), self._pulse)
        why_not = why_no_noise(self._batch, strategy.layout, compiles=config.train.compile)
        self._noise = NoiseMeter(strategy, config.measure.noise_scale_every, why_not)
        sampler = self._sampler(progress)
        with closing(sampler), self._display.bar(config.run.name or "", self._num_steps) as bar:
            recorder = Recorder(
                events,
                strategy,
                clock,
                warmup_steps=config.measure.warmup_steps,
                log_every=config.measure.log_every,
                peak_memory=lambda: peak_memory_of(prepared.device),
                on_log=lambda event: bar.update(event["step"], _note(event)),
                on_step=bar.update,
                sampler=sampler,
            )
            self._activity = Activity(self._pulse, recorder, self._activity.doing)
            keeper = self._keeper(model, recorder)
            steps = range(progress.step, self._num_steps)
            batches = StepBatches(self._train_batches, self._batch, steps, self._activity.begins, workers_of(prepared))
            self._memory = self._guard(model, batches, recorder, holds_folder=True)
            progress.seconds["startup"] += time.perf_counter() - self._began - prepared.tokenize_s
            progress.seconds["tokenize"] += prepared.tokenize_s
            loop = Loop(
                strategy=strategy,
                optimizer=optimizer,
                batches=batches,
                keeper=keeper,
                recorder=recorder,
                clock=clock,
                stop=self._stop,
                device=prepared.device,
                seed=config.run.seed,
                num_steps=self._num_steps,
                steps_per_epoch=self._steps_per_epoch,
                max_grad_norm=config.train.max_grad_norm,
                evaluation_due=self._evaluation_due,
                checkpoint_due=self._checkpoint_due,
                noise=self._noise,
                profiler=StepProfiler(
                    prepared.device,
                    config.measure.profile_steps,
                    warmup_steps=config.measure.warmup_steps,
                    folder=self._folder,
                    rank=strategy.layout.rank,
                    exchanges=strategy.layout.world_size > 1,
                ),
                saves_when_stopped=not config.measure.probe,
                shrink=self._memory.shrink,
            )
            with closing(batches):
                run_loop(loop, progress)
            recorder.flush()
        recorder.cost_s += sampler.cost_s
        recorder.add("end", step=progress.step)
        try:
            return self._finish(model, keeper, recorder).write(progress)
        except Interrupted:
            # The best weights may be loaded by now; what is trained is done, and a resumed run needs no others.
            save_and_stop(loop, progress)

    def _sampler(self, progress: Progress) -> Sampler:
        """Return what samples this rank's device; it has begun to."""
        measure, prepared = self._config.measure, self._prepared
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

    def _keeper(self, model: TaskModel, recorder: Recorder) -> RunKeeper:
        return RunKeeper(
            config=self._config,
            strategy=self._strategy,
            model=model,
            device=self._prepared.device,
            checkpoints=self._folder / records.CHECKPOINTS_FOLDER,
            batches_of=self._evaluations.batches_of,
            score=self._evaluations.score,
            is_better=is_better,
            recorder=recorder,
            stop=self._stop,
            display=self._display,
            steps_per_epoch=self._steps_per_epoch,
            begins=self._activity.begins,
        )

    def _train_batches(self, sizes: ResolvedBatch) -> TrainBatches:
        every = None if self._noise.reason is not None else self._config.measure.noise_scale_every
        return train_batches(self._prepared, self._strategy.layout, sizes, self._batch_layout, compare_every=every)

    def _finish(self, model: TaskModel, keeper: RunKeeper, recorder: Recorder) -> Finish:
        return Finish(
            prepared=self._prepared,
            strategy=self._strategy,
            folder=self._folder,
            model=model,
            sizes=self._batch,
            batches=self._train_batches(self._batch),
            evaluations=self._evaluations,
            keeper=keeper,
            recorder=recorder,
            num_steps=self._num_steps,
            steps_per_epoch=self._steps_per_epoch,
            work=self._work,
            noise_reason=self._noise.reason,
            begins=self._activity.begins,
        )

    def _evaluation_due(self, step: int) -> bool:
        if "validation" not in self._prepared.splits or step == 0 or self._config.measure.probe:
            return False
        section = self._config.evaluate
        return step == self._num_steps or is_due(step, section.every, section.steps, self._steps_per_epoch)

    def _checkpoint_due(self, step: int) -> bool:
        section = self._config.checkpoint
        if step == 0 or section.every == "never" or self._config.measure.probe:
            return False
        # Also the last step: what is still to come, writing the model, can fail on a full disk.
        return step == self._num_steps or is_due(step, section.every, section.steps, self._steps_per_epoch)


def note_failure(events: records.EventLog, error: Exception) -> None:
    """Write why the run ends, so that it is told from one that was killed; a full disk may be the reason itself."""
    with contextlib.suppress(CheckpointError):
        code = getattr(error, "code", None)
        events.add("failure", error=type(error).__name__, code=code, message=str(error)[:MAX_MESSAGE])
        events.flush()


def _note(event: Mapping[str, Any]) -> str:
    per_s = event["num_samples"] / event["wall_ms"] * 1000
    return f"loss {event['loss']:.4f}  epoch {event['epoch']:.2f}  {per_s:.0f} samples/s a rank"
