"""Attention of packed rows, without padding.

- `register`: the attention function `paratune_packed` of transformers' interface; chooses by device
- `cpu`: one autograd function that works in tiles, with cheap dropout masks
- `cuda`: chooses the flash or the memory-efficient kernel for rows of unequal length
- `kernels`: the private operators of PyTorch for these kernels
- `rows`: PyTorch's public function, row by row, for all other cases
- `operator`: all of these as one operator, for torch.compile
- `disentangled`: the attention of DeBERTa-v2 and -v3
- `masks`: masks of padded batches, without waiting for the GPU
- `check`: a test of the kernel with which a run will train
"""
