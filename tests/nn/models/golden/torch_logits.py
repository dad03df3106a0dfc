#!/usr/bin/env python3
"""Writes torch_logits.inc: logits of torchvision's models for weights and an input that come from an integer
hash, so that resnet_logits_test.cpp can make the same ones without a file of weights.

Debian: apt-get install python3-torch python3-torchvision; /usr/bin/python3 torch_logits.py > torch_logits.inc
"""
import numpy as np
import torch
import torchvision

M32 = np.uint64(0xFFFFFFFF)


def name_hash(name):
    h = 2166136261  # hash FNV-1a
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return h


def uniform(name, n):
    """n numbers in [-1, 1), exact in float32: 24 bits of a mixed counter (the finaliser of MurmurHash3)."""
    x = (np.arange(n, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(name_hash(name))) & M32
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x85EBCA6B)) & M32
    x ^= x >> np.uint64(13)
    x = (x * np.uint64(0xC2B2AE35)) & M32
    x ^= x >> np.uint64(16)
    return (x >> np.uint64(8)).astype(np.float64) / 2**23 - 1.0


def value(name, shape):
    n = int(np.prod(shape, dtype=np.int64))
    u = uniform(name, n)
    if name.endswith("running_var"):
        v = 1.0 + 0.5 * u
    elif name.endswith("running_mean") or name.endswith("bias"):
        v = 0.1 * u
    elif len(shape) == 1:  # batch norm weight
        v = 1.0 + 0.25 * u
    else:
        fan_in = int(np.prod(shape[1:], dtype=np.int64))
        v = u * np.sqrt(3.0 / fan_in)
    return torch.from_numpy(v.astype(np.float32).reshape(shape))


print("// Written by torch_logits.py: torchvision", torchvision.__version__, "on torch", torch.__version__)
for name, suffix in (("resnet18", "18"), ("resnet50", "50"), ("resnext50_32x4d", "NeXt50"), ("wide_resnet50_2", "Wide50")):
    net = torchvision.models.__dict__[name]().eval()
    state = {k: value(k, v.shape) for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    net.load_state_dict(state, strict=False)
    x = value("input.data", (2, 3, 224, 224)) * np.float32(np.sqrt(150528.0 / 3.0))
    with torch.no_grad():
        logits = net.double()(x.double()).numpy()
    count = sum(p.numel() for p in net.parameters())
    print(f"inline constexpr std::int64_t kParameters{suffix} = {count};")
    picked = logits[:, ::25].reshape(-1)
    print(f"inline constexpr std::array<double, {picked.size}> kLogits{suffix}{{")
    for i in range(0, picked.size, 6):
        print("    " + ", ".join(f"{v:.9g}" for v in picked[i:i + 6]) + ",")
    print("};")
