"""Find the micro-batch size of a model that keeps 40 MiB per row, from this process's resident memory; print JSON."""

import json
import sys
from typing import Any

import torch
from exact import RowModel, row_batch
from looping import CPU, single

from paratune import hardware
from paratune.config.batch_size import divisors
from paratune.config.sections import Train
from paratune.engine.fitting import DeviceMeter, Prober, find_micro_batch_size
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES


class Heavy(RowModel):
    """Keeps 40 MiB per row from forward to backward, and twice that while they are computed.

    Smaller tensors would come from the heap, which the C library does not always return to the system.
    """

    def forward(self, batch: Any) -> torch.Tensor:
        kept = torch.full((len(batch.input_ids), 40 * 2**18), 1.0)
        return super().forward(batch) + (kept * self.norm.bias[0]).sum() * 0


def main() -> None:
    """With 2400 MiB for two processes, each may use 80% of 1200 MiB: space for 24 rows, so 12 that are kept twice."""
    hardware.available_memory_bytes = lambda *_: 2400 * 2**20
    model, strategy = Heavy(), single()
    strategy.prepare(model, [], OptimizerFactory(Train(), 4))
    prober = Prober(
        strategy=strategy,
        traits=strategy.traits,
        model=model,
        precision=POLICIES["fp32"],
        device=CPU,
        longest=lambda size: row_batch(range(size), 64),
        share=64,
        meter=DeviceMeter(CPU, 2),
    )
    result = find_micro_batch_size(prober, divisors(64))
    assert result is not None
    (fits,) = (probe for probe in result.probes if probe.size == result.size)
    sys.stdout.write(
        json.dumps(
            {
                "size": result.size,
                "reason": result.reason,
                "available_bytes": fits.available_bytes,
                "peak_bytes": hardware.peak_memory_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
