"""Predicts the memory and the time of a run before a device is allocated.

The way of one option, in the order in which the files are best read:

1. `job` and `machine`: model, data and device; `enumerate` combines strategies, devices and batches into options.
2. `profile` traces a micro-batch of the model on tensors without data (`build`, `trace`, `shims`).
3. `kinds` has a module for each engine: states (`states`), memory besides them, collectives and seconds (`work`).
4. `memory` adds these up at the fullest moment (`allocator`: fragmentation); `time` adds the seconds of a step, with
   bounds from `constants`, and fits these to measured steps.
5. `predict` puts both together for each option, and `table` recommends one.
"""
