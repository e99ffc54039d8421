"""Attention of packed rows, without padding.

- `register`: the functions of transformers' attention interface: `paratune_packed`, which chooses by device, and those
  with masks of padded batches, which do not wait for the GPU
- `cpu`: one autograd function that works in tiles, with cheap dropout masks
- `cuda`: chooses the flash or the memory-efficient kernel for rows of unequal length
- `kernels`: the private operators of PyTorch for these kernels
- `windows`: PyTorch's public function, in one call for all rows, with a window
- `rows`: PyTorch's public function, row by row, for all other cases
- `operator`: all of these as one operator, for torch.compile
- `disentangled`: the attention of DeBERTa-v2 and -v3
- `check`: a test of the kernel with which a run will train
"""
