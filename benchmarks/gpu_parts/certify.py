"""`paratune certify` on the device: strategies in one process, with NCCL on a GPU, compared with no strategy."""

from collections.abc import Iterator
from functools import partial

from .setting import Check, Figures, Setting, hold
from .texts import CASES, of_setting, write_config, write_model
from .training import run_command


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a certificate for few strategies at a time, so that a hanging strategy does not stop the others."""
    for names in ("ddp,zero3",) if setting.tiny else ("ddp,zero3", "zero1,zero2"):
        yield Check(names, partial(certificate, setting, names), "Certificates")


def certificate(setting: Setting, names: str) -> Figures:
    """Run the command and return its figures."""
    setting.need(20)
    write_model(setting, num_hidden_layers=2)
    case = of_setting(CASES[2], setting)
    path = write_config(case, setting, names.replace(",", "-"), num_rows=128, num_steps=4)
    words = ("certify", str(path), "--strategies", names, "--nproc", "1", "--steps", "3")
    record = run_command(*words, timeout_s=setting.left_s() - 3)
    figures = {"verdict": record["verdict"], "precision": record["reference"]["precision"], "device": record["device"]}
    for finding in record["strategies"]:
        figures[finding["strategy"]] = finding["status"] + (f": {finding['reason']}" if finding["reason"] else "")
    return hold(record["verdict"] == "holds", "the certificate does not hold", figures)
