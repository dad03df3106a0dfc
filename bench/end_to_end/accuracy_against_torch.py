#!/usr/bin/env python3
"""Test accuracy of ResNet-20 (He et al. 2015, section 4.2) on CIFAR-10 beside PyTorch with the same recipe, over seeds.

  accuracy_against_torch.py --program build/bin/train_resnet --data DIR --epochs 8 --seeds 1 2 --points 0.7

DIR holds CIFAR-10's binary files. Both: batches of --batch-size in a new order each epoch, the last partial one left out, SGD
with momentum 0.9 and weight decay 1e-4 on all parameters, rate --lr that falls to zero as half a cosine, padding by 4, random
crops and mirroring, weights of convolutions normal with He's deviation. The data, the shapes and the recipe are the same, the
random numbers are not. Printed are the accuracies after the last epoch, their means and the difference in points. Exit status
1 when train_resnet's mean is more than --points below PyTorch's. Needs torch and numpy.
"""
import argparse
import datetime
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time


def read_cifar(folder):
    import numpy
    import torch

    def read(names):
        rows = numpy.concatenate([numpy.fromfile(os.path.join(folder, name), numpy.uint8) for name in names])
        rows = rows.reshape(-1, 3073)
        return torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(rows[:, 0].astype("int64"))

    return read([f"data_batch_{i}.bin" for i in range(1, 6)]), read(["test_batch.bin"])


def torch_network():
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
            self.stride, self.more = stride, outputs - inputs

        def forward(self, x):
            y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
            if self.more:  # option A: every second pixel, channels of zeros
                x = functional.pad(x[:, :, ::self.stride, ::self.stride],
                                   (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
            return functional.relu(x + y)

    class Pooled(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for outputs in (16, 32, 64):
        for block in range(3):
            layers.append(Block(inputs, outputs, 2 if block == 0 and outputs > 16 else 1))
            inputs = outputs
    network = nn.Sequential(*layers, Pooled(), nn.Linear(64, 10))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def torch_accuracy(a, seed):
    import torch
    from torch.nn import functional
    torch.set_num_threads(a.threads)
    torch.manual_seed(seed)
    (images, labels), (test_images, test_labels) = read_cifar(a.data)
    scaled = images.float() / 255
    mean, std = scaled.mean((0, 2, 3)).view(1, 3, 1, 1), scaled.std((0, 2, 3)).view(1, 3, 1, 1)
    del scaled
    network = torch_network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), a.lr, momentum=0.9, weight_decay=1e-4)
    batches = len(images) // a.batch_size
    step, steps = 0, a.epochs * batches
    for epoch in range(a.epochs):
        network.train()
        order = torch.randperm(len(images))
        for b in range(batches):
            chosen = order[b * a.batch_size:(b + 1) * a.batch_size]
            x = functional.pad((images[chosen].float() / 255 - mean) / std, (4, 4, 4, 4))
            top, left = torch.randint(0, 9, (2, len(chosen)))
            mirrored = torch.rand(len(chosen)) < 0.5
            cut = [x[i, :, top[i]:top[i] + 32, left[i]:left[i] + 32] for i in range(len(chosen))]
            x = torch.stack([c.flip(2) if mirrored[i] else c for i, c in enumerate(cut)])
            for group in optimizer.param_groups:
                group["lr"] = a.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            functional.cross_entropy(network(x.contiguous(memory_format=torch.channels_last)), labels[chosen]).backward()
            optimizer.step()
            step += 1
        network.eval()
        right = 0
        with torch.no_grad():
            for b in range(0, len(test_images), 500):
                x = (test_images[b:b + 500].float() / 255 - mean) / std
                right += (network(x).argmax(1) == test_labels[b:b + 500]).sum().item()
        print(f"  PyTorch, seed {seed}, epoch {epoch + 1}: {100 * right / len(test_images):.2f} %", file=sys.stderr, flush=True)
    return 100 * right / len(test_images)


def own_accuracy(a, seed):
    with tempfile.TemporaryDirectory() as out:
        command = [a.program, "--model", "resnet20", "--data", f"cifar10:{a.data}", "--epochs", str(a.epochs),
                   "--batch-size", str(a.batch_size), "--lr", str(a.lr), "--schedule", "cosine", "--warmup-steps", "0",
                   "--momentum", "0.9", "--weight-decay", "1e-4", "--pad", "4", "--flip", "on", "--seed", str(seed),
                   "--threads", str(a.threads), "--devices", "cpu", "--out", os.path.join(out, "run")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, OMP_WAIT_POLICY="passive"))
        if done.returncode != 0:
            sys.exit(f"accuracy_against_torch.py: {shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
        with open(os.path.join(out, "run", "metrics.jsonl")) as lines:
            epochs = [event for event in map(json.loads, lines) if event["event"] == "epoch"]
    return 100 * epochs[-1]["test_accuracy"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/bin/train_resnet")
    p.add_argument("--data", required=True)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    p.add_argument("--points", type=float, default=0.7)
    a = p.parse_args()
    contenders = {"train_resnet": own_accuracy, "PyTorch": torch_accuracy}
    results = {name: [] for name in contenders}
    for seed in a.seeds:
        for name, accuracy in contenders.items():
            start = time.monotonic()
            results[name].append(accuracy(a, seed))
            print(f"seed {seed}, {name}: {results[name][-1]:.2f} % in {time.monotonic() - start:.0f} s", file=sys.stderr,
                  flush=True)
    import torch
    print(f"{datetime.date.today()}, PyTorch {torch.__version__}, {a.epochs} epochs, batch {a.batch_size}, rate {a.lr}\n")
    print(" " * 12 + "".join(f"  seed {seed:<3}" for seed in a.seeds) + "    mean")
    means = {}
    for name, accuracies in results.items():
        means[name] = statistics.mean(accuracies)
        print(f"{name:<12}" + "".join(f"  {x:8.2f}" for x in accuracies) + f"  {means[name]:6.2f}")
    above = means["train_resnet"] - means["PyTorch"]
    print(f"difference: {above:+.2f} points")
    if not above >= -a.points:
        sys.exit(f"accuracy_against_torch.py: more than {a.points} points below PyTorch")


if __name__ == "__main__":
    main()
