"""A run, from the meeting of its processes to its summary: one process's part of it."""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import torch

from paratune import checkpoint, hardware, records
from paratune.batch import Batch
from paratune.config.advice import Job, advice
from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import LoadedConfig
from paratune.config.sections import run_path
from paratune.config.strategy_sections import strategy_options
from paratune.console import Display, log_to_file
from paratune.data.duplicates import write_text_hashes
from paratune.data.loader import Collate, EvalBatches, TrainBatches, eval_batches
from paratune.data.order import steps_per_epoch
from paratune.data.workers import BatchesAhead, start_server
from paratune.engine.evaluate import Evaluation, Interrupted
from paratune.engine.keeper import RunKeeper
from paratune.engine.loop import Loop, Progress, save_and_stop
from paratune.engine.loop import run as run_loop
from paratune.engine.noise import NoiseMeter
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import make_clock
from paratune.engine.probes import make_probe
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.sampler import Sampler
from paratune.engine.stop import StopRequest, before_the_first_step
from paratune.engine.summary import summarise
from paratune.errors import CheckpointError, LaunchError, Stopped
from paratune.metrics.scores import is_better
from paratune.models.load import say_what_is_new
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel, find_blocks
from paratune.place import local_world_size, place_from_environment
from paratune.run_folder import Mode, check_same_run, take
from paratune.tasks.baseline import constant_baseline
from paratune.trackers.protocol import About
from paratune.trackers.session import TrackerSession, check_installed
from paratune.train.batch_layout import BatchLayout
from paratune.train.flops import WorkCount, flops_record
from paratune.train.measured import why_no_noise, why_no_profile
from paratune.train.meet import check_same, met
from paratune.train.memory import MemoryGuard, StepBatches, device_facts
from paratune.train.micro_batch import choose_micro_batch
from paratune.train.prepare import (
    Prepared,
    batch_layout_of,
    batch_sizes,
    collator_of,
    initial_model,
    make_strategy,
    prepare,
    train_batches,
    workers_of,
)
from paratune.train.record import (
    add_session,
    gather_nodes,
    gather_texts,
    kind_of,
    model_facts,
    run_record,
    session_record,
    task_record,
    tracked_config,
)
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
    check_installed(loaded.config.trackers)
    stop = stop or StopRequest().install()
    place = place_from_environment()
    display = Display(speaks=place.rank == 0)
    if loaded.config.data.num_workers:
        start_server()  # it imports PyTorch while this process reads the data
    prepared = prepare(loaded, place, stop, display)
    with met(prepared, stop), prepared.precision.switched():
        return _Run(prepared, mode, stop, display, began).to_the_end()


class _Run:
    """One process's part of a run, from the meeting of the processes to the summary."""

    def __init__(
        self,
        prepared: Prepared,
        mode: Mode,
        stop: StopRequest,
        display: Display,
        began: float,
    ) -> None:
        self._prepared = prepared
        self._recipe = prepared.recipe
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
        self._collators: dict[str, Collate] = {}
        self._work: WorkCount
        """Of rank 0 only."""
        self._memory = MemoryGuard(prepared, self._folder, self._batch)
        self._steps_per_epoch = steps_per_epoch(prepared.splits["train"].num_samples, self._batch.global_batch_size)
        self._num_steps = num_steps(self._config, self._steps_per_epoch)
        check_steps(self._config, self._num_steps)

    def to_the_end(self) -> dict[str, Any]:
        with self._memory.explained():
            return self._to_the_end()

    def _to_the_end(self) -> dict[str, Any]:
        config, prepared = self._config, self._prepared
        if self._stop.agreed(self._strategy):
            raise Stopped(before_the_first_step(self._stop.said(), "preparing"))
        self._on_writer(self._check_same_run)
        self._choose_micro_batch()
        model = initial_model(prepared)
        self._batch_layout = batch_layout_of(prepared, model)
        if self._is_writer and (reason := self._batch_layout.reason):
            log.info("batches are %s: %s", self._batch_layout.kind, reason)
        # On every rank: rank 0 needs them for the record, and sharding would not notice other weights elsewhere.
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
        self._memory.model = model
        self._strategy.prepare(model, find_blocks(model), optimizer)
        lock = self._on_writer(lambda: take(self._folder, self._mode))
        self._memory.holds_folder = True
        try:
            log_to_file(self._folder, prepared.place.rank)
            progress = self._resume()
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
            with self._memory.explained():  # in here, where the event can still be written
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
            guard=self._memory,
            display=self._display,
        )
        self._batch, self._batch_reason, self._strategy = choice.sizes, choice.reason, choice.strategy
        self._memory.sizes = choice.sizes
        if self._is_writer and choice.reason:
            log.info(
                "micro-batches of %d, %d a step and rank: %s",
                choice.sizes.micro_batch_size,
                choice.sizes.grad_accum_steps,
                choice.reason,
            )

    def _write_record(self, step: int, model: dict[str, Any]) -> dict[str, Any] | None:
        """Write run.json, or add this session to it, and return the session on rank 0. Collective."""
        nodes = gather_nodes(self._strategy, self._folder, local_rank=self._prepared.place.local_rank)
        if not self._is_writer:
            return None
        lines = self._advice(model, nodes)
        for line in lines:
            log.warning("%s", line)
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
        plan = {
            "num_steps": self._num_steps,
            "steps_per_epoch": self._steps_per_epoch,
            "num_epochs": self._num_steps / self._steps_per_epoch,
        }
        record = run_record(self._prepared, self._folder, session=session, model=model, plan=plan)
        records.write_json(self._folder / records.RUN_FILE, record)
        return session

    def _advice(self, model: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
        prepared = self._prepared
        job = Job(
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
        return advice(prepared.traits, strategy_options(self._config.strategy), job)

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
            raise LaunchError("rank 0 could not use the run folder; its message says why")
        return result

    def _resume(self) -> Progress:
        """Load the newest whole checkpoint, if resuming; rank 0 says which, so that all take the same."""
        if self._mode != "resume":
            return Progress()
        checkpoints = self._folder / records.CHECKPOINTS_FOLDER
        newest = checkpoint.find_newest(checkpoints) if self._is_writer else None
        step = int(self._strategy.reduce(torch.tensor([checkpoint.Reader(newest).step if newest else 0]), "max"))
        if step == 0:
            log.info("no checkpoint to resume from in %s: starting at the first step", self._folder)
            if self._is_writer:
                for rank in records.event_ranks(self._folder):
                    (self._folder / records.events_file(rank)).unlink()
            self._strategy.reduce(torch.zeros(1), "max")
            return Progress()
        reader = checkpoint.Reader(checkpoint.step_folder(checkpoints, step))
        self._strategy.state().load(reader.read, reader.keys())
        progress = Progress(**reader.progress)
        progress.num_interruptions += 1
        log.info("resuming after step %d from %s", step, reader.folder)
        if self._is_writer:
            note_resume(self._folder, progress, world_size=self._strategy.layout.world_size)
        self._strategy.reduce(torch.zeros(1), "max")
        return progress

    def _train(
        self, model: TaskModel, optimizer: OptimizerFactory, progress: Progress, events: records.EventLog
    ) -> dict[str, Any]:
        config, prepared, strategy = self._config, self._prepared, self._strategy
        clock = make_clock(prepared.device)
        why_not = why_no_noise(self._batch_layout, self._batch, strategy.layout)
        self._noise = NoiseMeter(strategy, config.measure.noise_scale_every, why_not)
        sampler = self._sampler(progress)
        with closing(sampler), self._display.bar(config.run.name or "", self._num_steps) as bar:
            recorder = Recorder(
                events,
                strategy,
                clock,
                warmup_steps=config.measure.warmup_steps,
                log_every=config.measure.log_every,
                peak_memory=lambda: hardware_peak(prepared.device),
                on_log=lambda event: bar.update(event["step"], _note(event)),
                on_step=bar.update,
                sampler=sampler,
            )
            keeper = self._keeper(model, recorder)
            steps = range(progress.step, self._num_steps)
            batches = StepBatches(self._train_batches, self._batch, steps, self._memory, workers_of(prepared))
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
                    config.measure.profile_steps if strategy.layout.world_size > 1 else 0,
                    warmup_steps=config.measure.warmup_steps,
                ),
                saves_when_stopped=not config.measure.probe,
                shrink=self._memory.shrink,
            )
            self._memory.batches, self._memory.recorder = batches, recorder
            with closing(batches):
                run_loop(loop, progress)
            recorder.flush()
        recorder.cost_s += sampler.cost_s
        recorder.add("end", step=progress.step)
        try:
            return self._finish(model, keeper, recorder, progress)
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
            batches_of=self._batches_of,
            score=self._score,
            is_better=is_better,
            recorder=recorder,
            stop=self._stop,
            display=self._display,
            steps_per_epoch=self._steps_per_epoch,
            begins=self._memory.begins,
        )

    def _train_batches(self, sizes: ResolvedBatch) -> TrainBatches:
        return train_batches(self._prepared, self._strategy.layout, sizes, self._batch_layout)

    def _batches_of(self, split: str) -> tuple[int, Iterator[Batch]]:
        layout = self._strategy.layout
        batches = eval_batches(
            self._collator(split),
            batch_size=self._config.evaluate.batch_size,
            data_rank=layout.data_rank,
            data_world_size=layout.data_world_size,
        )
        return len(batches), self._made_ahead(batches)

    def _made_ahead(self, batches: EvalBatches) -> Iterator[Batch]:
        with closing(BatchesAhead(batches.step, range(len(batches)), workers_of(self._prepared))) as ahead:
            for step in ahead:
                yield from step

    def _collator(self, split: str) -> Collate:
        """Return what makes batches of a split: the same in each evaluation, for what it has drawn and counted."""
        if split not in self._collators:
            self._collators[split] = collator_of(self._prepared, split, self._batch_layout)
        return self._collators[split]

    def _score(self, split: str, evaluation: Evaluation) -> dict[str, float | None]:
        if split not in self._prepared.labelled:
            return {}
        found = self._recipe.scores(self._prepared.splits[split], evaluation.outputs)
        return {**found, "loss": evaluation.loss}

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

    def _finish(self, model: TaskModel, keeper: RunKeeper, recorder: Recorder, progress: Progress) -> dict[str, Any]:
        """Write what the run leaves: its kept model with scores, which a probe has not, and, last, the summary."""
        config, is_probe = self._config, self._config.measure.probe
        results = {} if is_probe else self._evaluated(keeper, progress)
        peaks = self._peaks()
        devices = gather_texts(self._strategy, device_name(self._prepared.device))
        if not is_probe:
            self._write_model(model, results)
        summary: dict[str, Any] = {}
        if self._is_writer:
            summary = self._summary(results, recorder, progress, peaks)
            summary["flops"] = flops_record(
                self._work,
                self._folder,
                self._train_batches(self._batch),
                tokens_per_s=summary["throughput"]["tokens_per_s"],
                precision=config.precision,
                devices=devices,
                is_masked_lm=config.task.kind == "mlm",
            )
            records.write_json(self._folder / records.SUMMARY_FILE, summary)
            self._drop_best_snapshots()
        self._strategy.reduce(torch.zeros(1), "max")
        self._strategy.close()
        return summary

    def _evaluated(self, keeper: RunKeeper, progress: Progress) -> dict[str, Any]:
        """Load the best weights and evaluate them. Collective."""
        kept_step = keeper.load_best(progress)
        if self._prepared.labelled.keys() - {"train"}:
            keeper.import_scorers(progress)
        begin = time.perf_counter()
        results = self._final_evaluations(keeper, kept_step)
        progress.seconds["evaluate"] += time.perf_counter() - begin
        return results

    def _write_model(self, model: TaskModel, results: Mapping[str, Any]) -> None:
        """Write predictions and the model. Collective, for its weights."""
        self._memory.begins("writing the model")
        weights = {key.removeprefix("model/"): value for key, value in self._strategy.state().tensors("model/")}
        if not self._is_writer:
            return
        tokenizer = self._prepared.tokenizer
        for split, (evaluation, _) in results.items():
            part = self._prepared.splits[split]
            self._recipe.write_predictions(self._folder, part, evaluation.outputs, tokenizer)
        write_text_hashes(self._folder / records.TRAIN_TEXTS_FILE, self._prepared.splits["train"].samples)
        save_model(
            self._folder / records.MODEL_FOLDER,
            model,
            tokenizer,
            {name: value for name, value in weights.items() if value is not None},
            task_record(self._prepared, self._recipe.task),
        )

    def _final_evaluations(
        self, keeper: RunKeeper, kept_step: int
    ) -> dict[str, tuple[Evaluation, dict[str, float | None]]]:
        """Evaluate the kept model, and let its validation set decide what the recipe leaves to it. Collective."""
        found: dict[str, Evaluation] = {}
        for split in self._prepared.splits:
            kept = keeper.evaluation_at(kept_step) if split == "validation" else None
            if split != "train":
                found[split] = kept if kept is not None else keeper.evaluate_split(split)[0]
        validation = found.get("validation")
        self._recipe = self._recipe.settled(
            None if validation is None else (self._prepared.splits["validation"], validation.outputs)
        )
        return {split: (evaluation, self._score(split, evaluation)) for split, evaluation in found.items()}

    def _peaks(self) -> list[dict[str, Any]]:
        peak = hardware_peak(self._prepared.device)
        peaks = self._strategy.reduce(torch.tensor([-1 if peak is None else peak]), "concat").tolist()
        device = str(self._prepared.device.type)
        return [
            {"rank": rank, "peak_memory_bytes": None if value < 0 else value, "device": device}
            for rank, value in enumerate(peaks)
        ]

    def _summary(
        self, results: Mapping[str, Any], recorder: Recorder, progress: Progress, peaks: Any
    ) -> dict[str, Any]:
        cost_ms = 1000 * recorder.cost_s / recorder.num_steps if recorder.num_steps else None
        summary = summarise(
            self._folder,
            run_id=self._folder.name,
            progress=progress,
            world_size=self._strategy.layout.world_size,
            num_steps=self._num_steps,
            steps_per_epoch=self._steps_per_epoch,
            peaks=peaks,
            memory_kind="cuda_allocated" if self._prepared.device.type == "cuda" else "rss",
            recorder={"cost_ms_per_step": cost_ms},
            noise_reason=self._noise.reason,
            profile_reason=why_no_profile(self._config.measure, self._strategy.layout),
            traits=self._prepared.traits,
            global_batch_size=self._batch.global_batch_size,
        )
        median = summary["step_ms"]["median"]
        summary["recorder"]["cost_share"] = cost_ms / median if cost_ms is not None and median else None
        prepared = self._prepared
        summary["scores"] = {split: values for split, (_, values) in results.items() if split in prepared.labelled}
        summary["kind"] = kind_of(self._config)
        is_probe = self._config.measure.probe
        summary["baseline"] = (
            None if is_probe else constant_baseline(self._config.task.kind, prepared.recipe, prepared.splits)
        )
        summary["pipeline"]["ideal_bubble_share"] = self._prepared.traits.ideal_bubble_share(
            self._batch.grad_accum_steps
        )
        for split, (evaluation, _) in results.items():
            if split not in prepared.labelled:
                continue
            details = self._recipe.details(self._prepared.splits[split], evaluation.outputs)
            for key, value in details.items():
                summary.setdefault(key, {})[split] = value
        return summary

    def _drop_best_snapshots(self) -> None:
        for folder in (self._folder / records.CHECKPOINTS_FOLDER).glob("best_*"):
            shutil.rmtree(folder, ignore_errors=True)


def note_resume(folder: Path, progress: Progress, *, world_size: int) -> None:
    """Write the event into the logs of all ranks there have been, also of those that are no more.

    What the checkpoint itself cost, which it cannot hold, is added to the times.

    Args:
        folder: The run.
        progress: Of the checkpoint.
        world_size: Ranks from now on.
    """
    checkpoints = folder / records.CHECKPOINTS_FOLDER
    taken = checkpoint.step_folder(checkpoints, progress.step)
    there = checkpoint.list_checkpoints(checkpoints)
    for event in records.read_events(folder):
        if event["event"] == "checkpoint" and event["step"] == progress.step:
            progress.seconds["checkpoint"] += event["time_s"]
            progress.seconds["total"] += event["time_s"]
    for rank in records.event_ranks(folder):
        events = records.EventLog(folder, rank)
        events.add(
            "resume",
            step=progress.step,
            world_size=world_size,
            checkpoint=taken.name,
            passed_over=[damaged.name for damaged in there[there.index(taken) + 1 :]],
        )
        events.close()


def note_failure(events: records.EventLog, error: Exception) -> None:
    """Write why the run ends, so that it is told from one that was killed; a full disk may be the reason itself."""
    with contextlib.suppress(CheckpointError):
        events.add("failure", error=type(error).__name__, message=str(error)[:MAX_MESSAGE])
        events.flush()


def hardware_peak(device: torch.device) -> int | None:
    """Return this process's peak memory in bytes: allocated on the GPU, or resident on the host."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else hardware.peak_memory_bytes()


def device_name(device: torch.device) -> str:
    """Return what the maker calls the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.cpu_model() or "CPU"


def _note(event: Mapping[str, Any]) -> str:
    per_s = event["num_samples"] / event["wall_ms"] * 1000
    return f"loss {event['loss']:.4f}  epoch {event['epoch']:.2f}  {per_s:.0f} samples/s a rank"
