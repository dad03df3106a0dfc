#!/usr/bin/env python3
"""torch_weights_test.py TORCH_WEIGHTS [SIDE]: weights go from torchvision to lockstep and back, and both compute the same
logits: for random weights that torch.save writes, those that lockstep writes, and the same as safetensors of torch's.
Prints the largest difference relative to the largest logit. Needs torch and torchvision; no Python package of safetensors.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torchvision

MODELS = ("resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2")
MOST = 1e-4


def read(path):
    """The F32 tensors of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    return {name: torch.from_numpy(np.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"]).copy())
            for name, entry in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, body = {}, b""
    for name, tensor in tensors.items():
        data = tensor.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def random_net(name):
    net = torchvision.models.__dict__[name](num_classes=1000)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.eval()


def logits_of(net, x):
    with torch.no_grad():
        return net.double()(x.double())


def distance(ours, theirs):
    return ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()


def main():
    program, side = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 64
    torch.manual_seed(1)
    torch.set_num_threads(2)
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        x = torch.randn(2, 3, side, side)
        write(folder / "x", {"x": x})

        def ours(what, name, weights):
            subprocess.run([program, what, name, str(weights), str(folder / "x"), str(folder / "out")], check=True)
            return read(folder / "out")["logits"]

        def say(name, way, value, holds):
            nonlocal wrong
            wrong = wrong or not holds
            print(f"{name:18} {way:42} {value:.2e}{'' if holds else '  WRONG'}", flush=True)

        for name in MODELS:
            net = random_net(name)
            state = net.state_dict()
            torch.save({"epoch": 90, "state_dict": {"module." + key: value for key, value in state.items()}}, folder / "a.pth")
            net.to(memory_format=torch.channels_last)  # gives the file tensors with strides
            torch.save(net.state_dict(), folder / "b.pth")
            write(folder / "c", {key: value for key, value in state.items() if value.dtype == torch.float32})
            theirs = logits_of(net, x)
            first = ours("load", name, folder / "a.pth")
            say(name, "torchvision -> .pth -> lockstep", distance(first, theirs), distance(first, theirs) <= MOST)
            for file in ("b.pth", "c"):
                assert torch.equal(ours("load", name, folder / file), first), f"{name}: other logits from {file}"
            made = ours("save", name, folder / "d")
            back = torchvision.models.__dict__[name](num_classes=1000).eval()
            back.load_state_dict(read(folder / "d"))  # strict: every name and shape is torchvision's
            value = distance(made, logits_of(back, x))
            say(name, "lockstep -> .safetensors -> torchvision", value, value <= MOST)
            # The control: after a change of one weight the logits must differ.
            changed = dict(state)
            changed["layer1.0.conv1.weight"] = state["layer1.0.conv1.weight"].clone()
            changed["layer1.0.conv1.weight"][0, 0] += 1
            torch.save(changed, folder / "e.pth")
            value = distance(ours("load", name, folder / "e.pth"), theirs)
            say(name, "the control: one changed kernel", value, value > MOST)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
