"""Signals that ask a run to end in good order: it saves a checkpoint and ends with exit code 75.

Floor 0: standard library only.
"""

import signal

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,  # Ctrl-C
    signal.SIGHUP,  # the terminal is gone: a lost ssh connection
    signal.SIGUSR1,  # Slurm, before the time limit (--signal)
    signal.SIGUSR2,  # other batch systems, before they preempt or kill
    signal.SIGXCPU,  # the limit of CPU time is reached
)
ENDED_BY_TORCHRUN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Those that torchrun receives itself, so that it starts no process again after them."""


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that a run takes over: `STOP_SIGNALS`, without SIGHUP where `nohup` has it ignored."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in STOP_SIGNALS if not (is_nohup and number == signal.SIGHUP))
