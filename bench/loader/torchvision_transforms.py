"""Measures the images per second that one thread reads and augments with torchvision, for the cases of bench_loader:

    python3 bench/loader/torchvision_transforms.py          (torch, torchvision, Pillow, NumPy)

Prints the median and the best of the repetitions. Images are Pillow's, as in torchvision's data sets; only erasing takes
a tensor.
"""
import io
import time

import numpy
import torch
import torchvision
from PIL import Image
from torchvision import transforms as T

torch.set_num_threads(1)
JITTER = T.ColorJitter(0.4, 0.4, 0.4, 0.1)


def show(name, read, repetitions=200):
    read()
    seconds = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        read()
        seconds.append(time.perf_counter() - begin)
    seconds.sort()
    print(f"{name}: {1 / seconds[repetitions // 2]:.0f} images/s, at best {1 / seconds[0]:.0f}")


def photo():
    y, x = numpy.mgrid[0:375, 0:500]
    noise = numpy.random.default_rng(2)
    channels = [
        128 + 50 * numpy.sin(0.02 * x + c) + 50 * numpy.cos(0.03 * y - c) + 20 * numpy.sin(0.7 * (x + y))
        + noise.integers(0, 8, x.shape)
        for c in range(3)
    ]
    file = io.BytesIO()
    pixels = numpy.stack(channels, -1).clip(0, 255).astype(numpy.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=2)
    return file.getvalue()


print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, one thread")
for side in (32, 224):
    tensor = torch.randint(0, 256, (3, side, side), dtype=torch.uint8)
    picture = T.ToPILImage()(tensor)
    numbers = tensor.float()
    crop_flip = T.Compose([T.RandomCrop(side, padding=side // 8), T.RandomHorizontalFlip()])
    show(f"memory/{side}/crop_flip", lambda: crop_flip(picture))
    show(f"memory/{side}/resized_part", lambda: T.RandomResizedCrop(side)(picture))
    show(f"memory/{side}/jitter", lambda: JITTER(picture))
    show(f"memory/{side}/erase", lambda: T.RandomErasing(1.0)(numbers))
jpeg = photo()


def folder(*steps):
    return lambda: T.Compose([*steps, T.PILToTensor()])(Image.open(io.BytesIO(jpeg)).convert("RGB"))


show("folder/224/middle", folder(T.Resize(256), T.CenterCrop(224)))
show("folder/224/part", folder(T.RandomResizedCrop(224), T.RandomHorizontalFlip()))
show("folder/224/jitter", folder(T.RandomResizedCrop(224), T.RandomHorizontalFlip(), JITTER))
