"""Writes torchvision_images.inc, what torchvision makes of two small images:

    python3 tests/nn/data/torchvision_images.py > tests/nn/data/torchvision_images.inc    (torchvision 0.14.1)

Images are (H, W, 3); of the first, colours in [0, 1]; of the second, parts resized with antialiasing, in [0, 255].
"""
import torch
import torchvision
import torchvision.transforms.functional as F


def picture(height, width):
    y, x, c = torch.meshgrid(torch.arange(height), torch.arange(width), torch.arange(3), indexing="ij")
    return (37 * y * y + 91 * x + 53 * c * (x + 2 * y) + 11) % 256


def chw(image):
    return image.permute(2, 0, 1).to(torch.float32)


def numbers(image):
    values = [f"{v:.7g}" for v in image.permute(1, 2, 0).flatten().tolist()]
    lines = [", ".join(values[i : i + 12]) for i in range(0, len(values), 12)]
    return "{" + ",\n  ".join(lines) + "}"


print(f"// By torchvision_images.py, torchvision {torchvision.__version__}, torch {torch.__version__}.")
small = picture(3, 4)
small[0, 0] = torch.tensor([80, 80, 80])
small[0, 1] = torch.tensor([0, 0, 0])
small[0, 2] = torch.tensor([255, 255, 255])
small[0, 3] = torch.tensor([200, 200, 10])
small[1, 0] = torch.tensor([10, 200, 200])
small[1, 1] = torch.tensor([200, 10, 200])
print("inline const std::vector<std::uint8_t> kColours{" + ", ".join(str(v) for v in small.flatten().tolist()) + "};")
colours = chw(small) / 255
print("inline const std::vector<ColourCase> kColourCases{")
for name, factors in {
    "brightness": [0.0, 0.4, 1.0, 1.7],
    "contrast": [0.0, 0.5, 1.0, 1.6],
    "saturation": [0.0, 0.3, 1.0, 1.8],
    "hue": [-0.5, -0.13, 0.0, 0.2, 0.5],
}.items():
    for factor in factors:
        changed = getattr(F, f"adjust_{name}")(colours, factor)
        print(f' {{"{name}", {factor}, {numbers(changed)}}},')
print("};")
large = chw(picture(9, 13))
print("inline const std::vector<CropCase> kCropCases{")
for top, left, height, width, out_height, out_width in [
    (0, 0, 9, 13, 4, 5),
    (2, 1, 6, 11, 3, 7),
    (1, 4, 3, 2, 5, 8),
    (8, 12, 1, 1, 2, 3),
    (0, 5, 9, 1, 9, 1),
]:
    part = F.resized_crop(large, top, left, height, width, [out_height, out_width], antialias=True)
    print(f" {{{top}, {left}, {height}, {width}, {out_height}, {out_width}, {numbers(part)}}},")
print("};")
