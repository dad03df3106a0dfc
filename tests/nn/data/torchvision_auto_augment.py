"""Writes torchvision_auto_augment.inc, what torchvision's TrivialAugmentWide and RandAugment make of bytes:

    python3 tests/nn/data/torchvision_auto_augment.py > tests/nn/data/torchvision_auto_augment.inc  (torchvision 0.14.1)

Images are (H, W, 3) in hexadecimal digits. Names, magnitudes and operations are torchvision's own (autoaugment.py).
"""
import torch
import torchvision
from torchvision.transforms import InterpolationMode, autoaugment

BINS = 31
HEIGHT, WIDTH = 9, 13  # size of pictures unless a call gives another


def picture(height, width):
    y, x, c = torch.meshgrid(torch.arange(height), torch.arange(width), torch.arange(3), indexing="ij")
    image = (37 * y * y + 91 * x + 53 * c * (x + 2 * y) + 11) % 256
    image = torch.where((x + y) % 3 == 0, image // 3 + 60, image)  # some values are frequent, others absent
    return image.clamp(5 * torch.ones_like(image), 250 - 20 * c).to(torch.uint8)


def digits(image):
    return '"' + bytes(image.flatten().tolist()).hex() + '"'


def result(image, op, magnitude):
    changed = autoaugment._apply_op(image.permute(2, 0, 1).contiguous(), op, magnitude,
                                    interpolation=InterpolationMode.NEAREST, fill=None)
    return changed.permute(1, 2, 0)


print(f"// By torchvision_auto_augment.py, torchvision {torchvision.__version__}, torch {torch.__version__}.")
spaces = {
    "trivial": autoaugment.TrivialAugmentWide()._augmentation_space(BINS),
    "rand": autoaugment.RandAugment()._augmentation_space(BINS, (HEIGHT, WIDTH)),
}
print("inline const std::vector<MagnitudeCase> kMagnitudeCases{")
for policy, space in spaces.items():
    for op, (magnitudes, signed) in space.items():
        values = magnitudes.tolist() if magnitudes.ndim else []
        print(f' {{"{policy}", "{op}", {str(signed).lower()}, {{{", ".join(f"{v:.17g}" for v in values)}}}}},')
print("};")
print("inline const std::vector<OpCase> kOpCases{")
small = picture(HEIGHT, WIDTH)
for op, (magnitudes, signed) in spaces["trivial"].items():
    chosen = [0.0] if magnitudes.ndim == 0 else [magnitudes[i].item() for i in ([4, 17, 30] if signed else [7, 19, 30])]
    if signed:
        chosen[1] = -chosen[1]
        chosen.append(spaces["rand"][op][0][9].item())
    if op == "Rotate":
        chosen += [90.0, -45.0]
    for magnitude in chosen:
        print(f' {{"{op}", {magnitude:.17g}, {HEIGHT}, {WIDTH}, {digits(result(small, op, magnitude))}}},')
# A large picture, for which Equalize has several steps; a picture of one value; and a picture too narrow to be
# sharpened.
large = picture(21, 19)
one = torch.full((20, 15, 3), 77, dtype=torch.uint8)
for op, image in [("Equalize", large), ("Equalize", one), ("AutoContrast", one), ("AutoContrast", large)]:
    print(f' {{"{op}", 0, {image.shape[0]}, {image.shape[1]}, {digits(result(image, op, 0.0))}}},')
narrow = picture(5, 2)
print(f' {{"Sharpness", 0.7, 5, 2, {digits(result(narrow, "Sharpness", 0.7))}}},')
print("};")
print(f"inline const std::string kSmallPicture{{{digits(small)}}};")
print(f"inline const std::string kLargePicture{{{digits(large)}}};")
print(f"inline const std::string kNarrowPicture{{{digits(narrow)}}};")
