"""Attention over packed rows, without padding.

- `register`: the name `paratune_packed` in transformers' attention interface, and the choice by device
- `cpu`: one autograd function in tiles, with cheap dropout masks
- `cuda`: flash and memory-efficient kernels for rows of unequal length, and which of them
- `kernels`: the private operators of PyTorch that these are
- `operator`: all of it as one operator, for torch.compile
- `rows`: with PyTorch's public function, a call for rows of one length that follow each other, for every other case
- `check`: whether the kernel that will train computes attention, tried once
"""
