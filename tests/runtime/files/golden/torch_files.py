#!/usr/bin/env python3
"""Writes the files of torch.save beside it, which torch_file_test.cpp reads.
Debian: apt-get install python3-torch; /usr/bin/python3 torch_files.py"""
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
numbers = torch.arange(24, dtype=torch.float32) - 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 2, 2, bias=False)
        self.norm = torch.nn.BatchNorm1d(2)
        self.conv.weight.data = numbers.reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        self.turned = torch.nn.Parameter(numbers.reshape(4, 6).t().contiguous().t())
        self.tied = self.conv.weight
        self.register_buffer("in_half", numbers.half())
        self.register_buffer("in_bfloat16", numbers.bfloat16())

    def forward(self, x):
        return self.norm(self.conv(x).flatten(2).mean(2))


def save(what, name, **options):
    torch.save(what, os.path.join(HERE, name), **options)


net = Net().eval()
save(net.state_dict(), "plain.pth")
parallel = {"module." + name: tensor for name, tensor in net.state_dict(keep_vars=True).items()}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
save({"epoch": 3, "state_dict": parallel, "optimizer": optimizer.state_dict(), "best": torch.tensor(0.5)}, "wrapped.pth")
save(net.state_dict(), "old.pth", _use_new_zipfile_serialization=False)
save(net, "module.pth")
torch.jit.trace(net, torch.zeros(2, 3, 4, 4)).save(os.path.join(HERE, "script.pt"))
