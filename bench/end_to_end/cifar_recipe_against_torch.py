#!/usr/bin/env python3
"""Test accuracy of the recipe cifar-airbench94 on CIFAR-10 beside PyTorch with the same recipe, over seeds.

  cifar_recipe_against_torch.py --program build/bin/train_resnet --data DIR [--epochs 10] [--seeds 1 2] [--out report.json]
  cifar_recipe_against_torch.py --program build/bin/train_resnet --data DIR --check

DIR holds CIFAR-10's binary files. PyTorch's side is written here: network, first values, whitening, augmentation, optimizer,
schedule and views of test images, with the numbers of examples/recipes/cifar-airbench94.toml. --epochs other than the recipe's
shorten its steps and its warm-up in proportion. Random numbers are not the same on both sides, all else is.

--check shows that: in f64, from the same weights and images, both sides must have the same whitening filters, the same
parameters and running statistics after four updates (whole data set as one batch, so that no order counts), the same losses of
test images, with and without views. Each run does this first; with --check nothing else. Exit status 1 when the two differ.

--together trains both sides at the same time. Needs torch and numpy, and Python 3.11.
"""
import argparse
import concurrent.futures
import datetime
import fnmatch
import json
import os
import re
import resource
import shlex
import statistics
import sys
import tempfile
import threading
import time
import tomllib

import numpy
import torch
from torch import nn
from torch.nn import functional

from compare_runs import output_of, processor

RECIPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "recipes", "cifar-airbench94.toml")
WHITENED_IMAGES = 5000
VIEWS = [(False, 0, 0.25), (True, 0, 0.25), (False, -1, 0.125), (True, -1, 0.125), (False, 1, 0.125), (True, 1, 0.125)]


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def read_cifar(folder):
    def read(names):
        rows = numpy.concatenate([numpy.fromfile(os.path.join(folder, name), numpy.uint8) for name in names])
        rows = rows.reshape(-1, 3073)
        return torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(rows[:, 0].astype("int64"))

    return read([f"data_batch_{i}.bin" for i in range(1, 6)]), read(["test_batch.bin"])


# The network, its first values and its images


class Group(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)

    def forward(self, x):
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        return functional.gelu(self.norm2(self.conv2(x)))


class Network(nn.Module):
    """Parameters have train_resnet's names. Those that do not train: filters of the whitening and scales of norms."""

    def __init__(self):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.group1, self.group2, self.group3 = Group(24, 64), Group(64, 256), Group(256, 256)
        self.head = nn.Linear(256, 10, bias=False)  # begins uniform within 1 / sqrt(256), as nn.Linear does
        nn.init.zeros_(self.whiten.bias)
        for name, parameter in self.named_parameters():
            if ".conv" in name:  # as nn.Conv2d begins, within 1 / sqrt(inputs), but the first filters pass a channel on
                nn.init.dirac_(parameter.data[:parameter.shape[1]])
            parameter.requires_grad_(name != "whiten.weight" and not (".norm" in name and name.endswith(".weight")))

    def forward(self, x):
        x = self.group3(self.group2(self.group1(functional.gelu(self.whiten(x)))))
        return self.head(functional.max_pool2d(x, 3).flatten(1)) / 9


def whitening_filters(images, mean, std):
    """images: (N, H, W, 3). Eigenvectors of the second moments of 2 x 2 patches over the roots of their eigenvalues."""
    x = ((images[:WHITENED_IMAGES].double() / 255 - mean.double()) / std.double()).permute(0, 3, 1, 2)
    patches = x.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    values, vectors = values.flip(0), vectors.flip(1).T
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    filters = vectors * largest.sign() / (values + 5e-4).sqrt().unsqueeze(1)
    return torch.cat([filters, -filters]).view(24, 3, 2, 2)


def shown(images, rows, columns, mirrored):
    """Images moved by rows and columns (one number or N), reflected about their edge pixels, and mirrored."""
    side = torch.arange(32)

    def places(moved):
        at = (side + torch.as_tensor(moved).reshape(-1, 1)).abs()
        return (31 - (31 - at).abs()).expand(len(images), 32)

    across = torch.where(torch.as_tensor(mirrored).reshape(-1, 1), 31 - side, side).expand(len(images), 32)
    across = places(columns).gather(1, across)
    return images[torch.arange(len(images))[:, None, None], places(rows)[:, :, None], across[:, None, :]]


class Side:
    """PyTorch's side: a network, and how images become its input."""

    def __init__(self, images, dtype):
        self.dtype = dtype
        scaled = images.reshape(-1, 3).numpy()
        self.mean = torch.tensor([scaled[:, c].mean(dtype=numpy.float64) / 255 for c in range(3)], dtype=torch.float32)
        self.std = torch.tensor([scaled[:, c].std(dtype=numpy.float64) / 255 for c in range(3)], dtype=torch.float32)
        self.network = Network()
        self.network.whiten.weight.data.copy_(whitening_filters(images, self.mean, self.std))
        self.network.to(dtype=dtype, memory_format=torch.channels_last)

    def input(self, images):
        return ((images.to(self.dtype) / 255 - self.mean.to(self.dtype)) / self.std.to(self.dtype)).permute(0, 3, 1, 2)

    def test_outputs(self, images, views):
        self.network.eval()
        with torch.no_grad():
            return torch.cat([sum(share * self.network(self.input(shown(part, move, move, mirror))) for mirror, move, share in views)
                              for part in images.split(500)])

    def optimizer(self, recipe):
        groups = []
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                decay = recipe["norm-weight-decay"] if ".norm" in name else recipe["weight-decay"]
                factor = 1.0
                for rule in recipe["rate-scale"]:
                    pattern, _, number = rule.rpartition("=")
                    factor = float(number) if fnmatch.fnmatchcase(name, pattern) else factor
                groups.append({"params": [parameter], "weight_decay": decay, "factor": factor})
        return torch.optim.SGD(groups, recipe["lr"], momentum=recipe["momentum"], nesterov=recipe["nesterov"])

    def update(self, optimizer, x, labels, rate, smoothing):
        self.network.train()
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.zero_grad()
        loss = functional.cross_entropy(self.network(x), labels, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        return loss.item()


def rate_of(recipe, step, steps, warmup):
    if step < warmup:
        return recipe["lr"] * (recipe["warmup-factor"] + (1 - recipe["warmup-factor"]) * step / warmup)
    left = 1 - (step - warmup) / max(steps - warmup, 1)
    return recipe["lr-end"] + (recipe["lr"] - recipe["lr-end"]) * left ** recipe["power"]


def read_recipe(path):
    with open(path, "rb") as file:
        recipe = tomllib.load(file)
    written_here = {"model": "airbench94", "optimizer": "sgd", "schedule": "polynomial", "warmup": "linear", "pad-mode": "reflect",
                    "flip": "alternate", "tta": "mirror-translate", "keep-last": False}
    for name, value in written_here.items():
        if recipe[name] != value:
            sys.exit(f"cifar_recipe_against_torch.py: the recipe's {name} is {recipe[name]}, expected {value}")
    return recipe


# Training


def torch_run(a, recipe, plan, seed):
    torch.set_num_threads(a.threads)
    torch.manual_seed(seed)
    (images, labels), (test_images, test_labels) = a.cifar
    side = Side(images, torch.float32)
    optimizer = side.optimizer(recipe)
    batch, pad = recipe["batch-size"], recipe["pad"]
    own = torch.rand(len(images)) < 0.5  # mirrored in even epochs; the others in odd ones
    step, result = 0, {"test_accuracy": [], "test_loss": [], "train_loss": []}
    cpu, start = time.process_time(), time.monotonic()
    for epoch in range(plan["epochs"]):
        order = torch.randperm(len(images))
        losses = []
        for b in range(len(images) // batch):
            if step == plan["steps"]:
                break
            chosen = order[b * batch:(b + 1) * batch]
            rows, columns = torch.randint(-pad, pad + 1, (2, batch))
            x = side.input(shown(images[chosen], rows, columns, own[chosen] ^ (epoch % 2 == 1)))
            rate = rate_of(recipe, step, plan["steps"], plan["warmup"])
            losses.append(side.update(optimizer, x, labels[chosen], rate, recipe["label-smoothing"]))
            step += 1
        outputs = side.test_outputs(test_images, [(False, 0, 1)])
        result["test_accuracy"].append(100 * (outputs.argmax(1) == test_labels).double().mean().item())
        result["test_loss"].append(functional.cross_entropy(outputs, test_labels).item())
        result["train_loss"].append(statistics.mean(losses))
        say(f"  PyTorch, seed {seed}, epoch {epoch + 1}: {result['test_accuracy'][-1]:.2f} % after {time.monotonic() - start:.0f} s")
    result.update(seconds=time.monotonic() - start, cpu_seconds=time.process_time() - cpu)
    outputs = side.test_outputs(test_images, VIEWS)
    result["test_accuracy_with_views"] = 100 * (outputs.argmax(1) == test_labels).double().mean().item()
    return result


def own_program(a, options):
    return output_of([a.program, "--devices", "cpu", *options])


def epochs_of(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return [event for event in map(json.loads, lines) if event["event"] == "epoch"]


def own_run(a, recipe, plan, seed):
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        data = ["--data", f"cifar10:{a.data}", "--threads", str(a.threads), "--dtype", a.dtype]
        cpu, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        own_program(a, ["--recipe", a.recipe, *data, "--epochs", str(plan["epochs"]), "--steps", str(plan["steps"]),
                        "--warmup-epochs", repr(plan["warmup_epochs"]), "--tta", "none", "--seed", str(seed), "--out", run])
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        epochs = epochs_of(run)
        viewed = own_program(a, [*data, "--tta", recipe["tta"], "--evaluate", os.path.join(run, "last")])
    result = {"test_accuracy": [100 * e["test_accuracy"] for e in epochs], "test_loss": [e["test_loss"] for e in epochs],
              "train_loss": [e["loss"] for e in epochs], "seconds": seconds,
              "cpu_seconds": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
              "test_accuracy_with_views": float(re.search(r"test loss \S+ +accuracy (\S+) %", viewed).group(1))}
    say(f"  train_resnet, seed {seed}: " + " ".join(f"{x:.2f}" for x in result["test_accuracy"]) + " %")
    return result


# The check


DTYPES = {"F64": numpy.float64, "F32": numpy.float32}


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()

    def tensor(entry):
        values = numpy.frombuffer(data[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]])
        return torch.from_numpy(values.reshape(entry["shape"]).copy())

    return {name: tensor(entry) for name, entry in header.items() if name != "__metadata__"}


def write_safetensors(path, tensors):
    header, parts, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in tensors.items():
        parts.append(tensor.detach().double().contiguous().numpy().tobytes())
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def write_cifar(folder, name, images, labels):
    pixels = images.permute(0, 3, 1, 2).reshape(len(images), -1).numpy()
    rows = numpy.concatenate([labels.numpy().astype(numpy.uint8)[:, None], pixels], 1)
    os.makedirs(folder, exist_ok=True)
    rows.tofile(os.path.join(folder, name))


def difference(ours, theirs):
    """Largest difference relative to the largest number."""
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-300)).item()


def check(a, recipe):
    """What is compared, with the difference and how large it may be."""
    torch.set_num_threads(a.threads)
    torch.manual_seed(5)
    (images, labels), (test_images, test_labels) = a.cifar
    count, updates = 64, 4
    images, labels, test_images, test_labels = images[:5200], labels[:5200], test_images[:count], test_labels[:count]
    found = []

    def compare(what, value, most):
        found.append({"what": what, "difference": value, "at_most": most, "holds": bool(value <= most)})
        say(f"  {'ok    ' if value <= most else 'FAILED'} {what}: {value:.2e} (at most {most:.0e})")

    with tempfile.TemporaryDirectory() as folder:
        def own(name, data, *options):
            """A run of train_resnet: tensors, events of epochs, options as resolved."""
            out = os.path.join(folder, name)
            own_program(a, ["--recipe", a.recipe, "--data", f"cifar10:{os.path.join(folder, data)}", "--dtype", "f64",
                            "--threads", str(a.threads), "--batch-size", str(count), "--out", out, *options])
            with open(os.path.join(out, "config.json")) as file:
                own_options = json.load(file)["options"]
            return read_safetensors(os.path.join(out, "last", "model.safetensors")), epochs_of(out), own_options

        # Pictures have equal neighbours, between which only roundings decide in a max pool; so updates take drawn pixels.
        drawn = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8)
        for name, given in (("many", images), ("few", drawn)):
            write_cifar(os.path.join(folder, name), "data_batch_1.bin", given, labels[:len(given)])
            write_cifar(os.path.join(folder, name), "test_batch.bin", test_images, test_labels)
        many, few = Side(images, torch.float64), Side(drawn, torch.float64)
        # First values: one update with a rate that changes nothing.
        first, _, options = own("first", "many", "--steps", "1", "--lr", "1e-30", "--lr-end", "0", "--tta", "none")
        for what, value in (("mean", many.mean), ("std", many.std)):
            own_value = torch.tensor([float(x) for x in options[what].split()])
            compare(f"{what} of the training images", difference(own_value, value), 1e-6)
        compare(f"whitening filters from {WHITENED_IMAGES} of {len(images)} images",
                difference(first["whiten.weight"], many.network.whiten.weight), 1e-6)
        theirs = dict(many.network.named_parameters())
        same = set(theirs) == {name for name in first if "running" not in name}
        compare("names of parameters that differ", 0.0 if same else 1.0, 0)
        for name, value in theirs.items():
            own_value, value = first[name].double(), value.detach()
            if ".conv" in name:
                width = value.shape[1]
                compare(f"{name}: filters of the identity", (own_value[:width] - value[:width]).abs().max().item(), 1e-20)
                own_value, value = own_value[width:], value[width:]
            if ".conv" in name or name == "head.weight":
                if value.numel():
                    bound = first[name][0].numel() ** -0.5
                    compare(f"{name}: drawn outside of its bound", (own_value.abs().max() / bound - 1).clamp(min=0).item(), 1e-6)
                    compare(f"{name}: deviation of what is drawn", abs(own_value.std() / value.std() - 1).item(), 0.05)
            elif name != "whiten.weight":
                compare(f"{name}: first values", (own_value - value).abs().max().item(), 1e-20)

        # Updates from the same weights, all images in one batch.
        start = os.path.join(folder, "start.safetensors")
        write_safetensors(start, {name: value for name, value in few.network.state_dict().items() if "num_batches" not in name})
        runs = {}
        for tta in ("none", recipe["tta"]):
            runs[tta] = own(f"trained {tta}", "few", "--init", start, "--epochs", str(updates), "--steps", str(updates),
                            "--pad", "0", "--flip", "off", "--tta", tta)
        weights, epochs, _ = runs["none"]
        optimizer, warmup = few.optimizer(recipe), round(recipe["warmup-epochs"])
        for step in range(updates):
            rate = rate_of(recipe, step, updates, warmup)
            loss = few.update(optimizer, few.input(drawn), labels[:count], rate, recipe["label-smoothing"])
            compare(f"loss of update {step + 1}", abs(epochs[step]["loss"] / loss - 1), 1e-9)
        for name, value in few.network.state_dict().items():
            if "num_batches" not in name:
                compare(f"{name} after {updates} updates", difference(weights[name], value), 1e-9)

        # Outputs: PyTorch with our weights.
        few.network.load_state_dict({name: value.double() for name, value in weights.items()}, strict=False)
        for tta, views in (("none", [(False, 0, 1)]), (recipe["tta"], VIEWS)):
            losses = functional.cross_entropy(few.test_outputs(test_images, views), test_labels, reduction="none")
            own_loss = runs[tta][1][-1]["test_loss"]
            compare(f"mean loss of {count} test images, views {tta}", abs(own_loss / losses.mean().item() - 1), 1e-9)
            with open(os.path.join(folder, f"trained {tta}", "evaluation.json")) as file:
                worst = torch.tensor([sample["loss"] for sample in json.load(file)["worst"]], dtype=torch.float64)
            losses = losses.sort(descending=True).values[:len(worst)]
            compare(f"loss of each of the {len(worst)} worst, views {tta}", difference(worst, losses), 1e-9)
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/bin/train_resnet")
    p.add_argument("--data", required=True)
    p.add_argument("--recipe", default=RECIPE)
    p.add_argument("--epochs", type=int, help="else the recipe's")
    p.add_argument("--threads", type=int, default=2, help="of each side")
    p.add_argument("--dtype", default="fp32", help="of train_resnet; PyTorch's is fp32")
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    p.add_argument("--check", action="store_true")
    p.add_argument("--together", action="store_true")
    p.add_argument("--out")
    a = p.parse_args()
    recipe = read_recipe(a.recipe)
    a.cifar = [(images.permute(0, 2, 3, 1).contiguous(), labels) for images, labels in read_cifar(a.data)]

    epochs = a.epochs or recipe["epochs"]
    share = epochs / recipe["epochs"]
    batches = len(a.cifar[0][0]) // recipe["batch-size"]
    plan = {"epochs": epochs, "steps": min(round(recipe["steps"] * share), epochs * batches), "warmup_epochs": recipe["warmup-epochs"] * share}
    plan["warmup"] = round(plan["warmup_epochs"] * batches)
    words = shlex.join(os.path.basename(x) if os.path.sep in x else x for x in sys.argv)
    version = own_program(a, ["--version"]).splitlines()[0]
    report = {"date": str(datetime.date.today()), "command": words, "hardware": processor(), "threads": a.threads, "together": a.together,
              "versions": {"train_resnet": version, "torch": torch.__version__, "python": sys.version.split()[0]},
              "dtype": {"train_resnet": a.dtype, "PyTorch": "fp32"}, "recipe": recipe, "plan": plan, "load_at_start": os.getloadavg(),
              "runs": {}}

    def last(x):
        return x[-1] if isinstance(x, list) else x

    def write():  # after each run, so that what has run is there when the program is ended
        report["mean"] = {name: {key: statistics.mean(last(run[key]) for run in runs.values())
                                 for key in ("test_accuracy", "test_accuracy_with_views")}
                          for name, runs in report["runs"].items() if runs}
        if a.out:
            with open(a.out, "w") as out:
                json.dump(report, out, indent=1, sort_keys=True)
                out.write("\n")

    say("check:")
    report["check"] = check(a, recipe)
    wrong = [x["what"] for x in report["check"] if not x["holds"]]
    write()
    if wrong or a.check:
        print(f"check: {len(report['check']) - len(wrong)} equal, {len(wrong)} differ")
        sys.exit(1 if wrong else 0)

    contenders = {"train_resnet": own_run, "PyTorch": torch_run}
    report["runs"] = {name: {} for name in contenders}
    lock = threading.Lock()

    def run_seeds(name, seeds):
        for seed in seeds:
            result = contenders[name](a, recipe, plan, seed)
            with lock:
                report["runs"][name][str(seed)] = result
                write()

    if a.together:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(run_seeds, name, a.seeds) for name in contenders]:
                done.result()
    else:
        for seed in a.seeds:
            for name in contenders:
                run_seeds(name, [seed])
    print(f"{report['date']}, PyTorch {torch.__version__}, {epochs} epochs, {plan['steps']} steps, train_resnet in {a.dtype}\n")
    for key in ("test_accuracy", "test_accuracy_with_views"):
        print(" " * 26 + "".join(f"  seed {seed:<3}" for seed in a.seeds) + "    mean")
        for name, runs in report["runs"].items():
            values = [last(runs[str(seed)][key]) for seed in a.seeds]
            print(f"{name:<12} {'with views' if key.endswith('views') else '':<13}" + "".join(f"  {x:8.2f}" for x in values) + f"  {report['mean'][name][key]:6.2f}")
        print(f"difference: {report['mean']['train_resnet'][key] - report['mean']['PyTorch'][key]:+.2f} points")


if __name__ == "__main__":
    main()
