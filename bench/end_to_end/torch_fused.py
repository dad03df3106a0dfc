#!/usr/bin/env python3
"""Runs a PyTorch program with fused SGD instead of foreach SGD: torch_fused.py PROGRAM.py [ARGUMENT ...]

With foreach the loss scaler reads on the host whether a gradient overflowed (.item()), which no CUDA graph can capture; the
fused kernel reads it on the GPU. Fused SGD is also PyTorch's fastest."""
import runpy
import sys

import torch

made_as_before = torch.optim.SGD.__init__


def fused(self, *arguments, **options):
    if options.pop("foreach", None):
        options["fused"] = True
    made_as_before(self, *arguments, **options)


torch.optim.SGD.__init__ = fused
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
