"""Signals that stop a run: it saves a checkpoint and ends with exit code 75."""

import signal

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,  # Ctrl-C
    signal.SIGHUP,  # the terminal closed: a lost ssh connection
    signal.SIGUSR1,  # Slurm, before the time limit (--signal)
    signal.SIGUSR2,  # other batch systems, before they preempt or kill
    signal.SIGXCPU,  # the limit of CPU time is reached
)
ENDED_BY_TORCHRUN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that torchrun handles itself: it does not restart processes after them."""


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that a run handles: `STOP_SIGNALS`, without SIGHUP under `nohup`, which ignores it."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in STOP_SIGNALS if not (is_nohup and number == signal.SIGHUP))
