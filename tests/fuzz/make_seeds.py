#!/usr/bin/env python3
"""Writes seeds/READER/NAME: small inputs of every kind that a reader takes, and the damaged ones that once gave wrong numbers,
were accepted, or cost minutes or gigabytes. The formats are those that the files in readers/ say.
  tests/fuzz/make_seeds.py            again after a change; the files are committed"""
import base64
import gzip
import io
import json
import os
import shutil
import struct
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = os.path.join(HERE, "seeds")


def put(reader, name, data):
    folder = os.path.join(SEEDS, reader)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as out:
        out.write(data.encode() if isinstance(data, str) else data)


def piece(data):
    return struct.pack("<H", len(data)) + data


def changed(tree, path, value):
    """A copy of a tree of dicts and lists with another value at a path."""
    copy = json.loads(json.dumps(tree))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


# ---- idx
def images(count, height, width, pixels=None):
    return struct.pack(">4I", 0x803, count, height, width) + (
        pixels if pixels is not None else bytes(range(count * height * width)))


def labels(values):
    return struct.pack(">2I", 0x801, len(values)) + bytes(values)


def idx(flags, *files):
    return bytes([flags]) + b"".join(piece(f) for f in files)


def idx_seeds():
    good = [images(3, 2, 2), labels([0, 5, 9]), images(1, 2, 2), labels([7])]
    put("idx", "plain", idx(0, *good))
    put("idx", "gzip_here", idx(0xFF, *good))
    two = gzip.compress(good[1][:9], mtime=0) + gzip.compress(good[1][9:], mtime=0)
    put("idx", "gzip", idx(0x0F, gzip.compress(good[0], mtime=0), two, gzip.compress(good[2], mtime=0),
                           gzip.compress(good[3], mtime=0)))
    put("idx", "gzip_cut", idx(0x01, gzip.compress(good[0], mtime=0)[:-9], *good[1:]))
    put("idx", "gzip_end_in_header", idx(0x02, good[0], gzip.compress(good[1], mtime=0)[:5], *good[2:]))
    put("idx", "twelve_classes", idx(0, images(12, 1, 1), labels(range(12)), images(1, 1, 1), labels([11])))
    put("idx", "begins_with_1", idx(0, images(10, 1, 1), labels(range(1, 11)), images(1, 1, 1), labels([10])))
    put("idx", "gap", idx(0, images(4, 1, 1), labels([0, 1, 2, 10]), *good[2:]))
    put("idx", "test_label_unknown", idx(0, *good[:3], labels([11])))
    put("idx", "other_size", idx(0, *good[:2], images(1, 2, 3), good[3]))
    put("idx", "other_count", idx(0, good[0], labels([1]), *good[2:]))
    put("idx", "goes_on", idx(0, good[0] + b"x", *good[1:]))
    put("idx", "wrong_magic", idx(0, good[1] + bytes(20), *good[1:]))
    put("idx", "no_extent", idx(0, images(0, 2, 2, b""), *good[1:]))
    put("idx", "overflow", idx(0, images(0xFFFFFFFF, 4096, 4096, b""), *good[1:]))
    put("idx", "too_much", idx(0, images(0xFFFF, 1024, 1024, b""), *good[1:]))
    # The header of a small compressed file claims a thousand times the file's size. The reader must not allocate that
    # much.
    noise = bytes((i * i * 31 + i // 7) % 251 for i in range(4000))
    put("idx", "f4_claims_most", idx(0x11, images(3, 1024, 1024, noise), *good[1:]))


# ---- cifar10
def cifar10_seeds():
    def file(size, begin=b""):
        return bytes([size]) + piece(begin)

    put("cifar10", "two_files", bytes([0b100001]) + file(2, b"\x03" + bytes(range(200))) + file(1, b"\x09\xff"))
    put("cifar10", "all_files", bytes([0b111111]) + b"".join(file(1, bytes([i])) for i in range(6)))
    put("cifar10", "gap", bytes([0b100101]) + file(1) * 3)
    put("cifar10", "no_test", bytes([0b000001]) + file(1))
    put("cifar10", "no_train", bytes([0b100000]) + file(1))
    put("cifar10", "empty", bytes([0b100001]) + file(0) + file(1))
    put("cifar10", "not_whole", bytes([0b100001]) + file(0x11) + file(1))
    put("cifar10", "label_10", bytes([0b100001]) + file(1, b"\x0a") + file(1))


# ---- safetensors
def header(tree, data=b"", spaces=0):
    text = (tree if isinstance(tree, str) else json.dumps(tree, separators=(",", ":"))).encode() + b" " * spaces
    return b"\x01" + piece(text) + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    every = {"__metadata__": {"format": "pt", "note": "a\u00e9"}}
    offset = 0
    for name, size in [("F64", 8), ("I64", 8), ("U64", 8), ("F32", 4), ("I32", 4), ("BF16", 2), ("F16", 2), ("U8", 1)]:
        every["t." + name] = tensor(name, [1, 2], offset, offset + 2 * size)
        offset += 2 * size
    put("safetensors", "every_type", header(every, bytes(range(offset)), 5))
    put("safetensors", "foreign_types", header({"a": tensor("BOOL", [2], 0, 2), "b": tensor("F4", [2], 2, 3),
                                                "c": tensor("F8_E4M3", [], 3, 4)}, b"abcd"))
    put("safetensors", "empty_tensors", header({"a": tensor("F32", [0, 9], 0, 0), "b": tensor("F32", [], 0, 4)}, b"1234"))
    put("safetensors", "no_tensors", header({}))
    raw = json.dumps({"a": tensor("U8", [1], 0, 1)}).encode()
    put("safetensors", "raw", b"\x00" + struct.pack("<Q", len(raw)) + raw + b"x")
    put("safetensors", "raw_large_header", b"\x00" + struct.pack("<Q", 94_000_000) + raw)
    put("safetensors", "raw_cut", b"\x00" + struct.pack("<Q", len(raw) + 1) + raw)
    put("safetensors", "raw_short", b"\x00" + b"1234567")
    put("safetensors", "overlap", header({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, b"abc"))
    put("safetensors", "hole", header({"a": tensor("U8", [1], 1, 2)}, b"ab"))
    put("safetensors", "more_data", header({"a": tensor("U8", [1], 0, 1)}, b"ab"))
    put("safetensors", "overflow", header({"a": tensor("U8", [2**32, 2**32], 0, 0)}))
    put("safetensors", "overflow_bits", header({"a": tensor("F64", [2**62], 0, 0)}))
    put("safetensors", "half_byte", header({"a": tensor("F4", [3], 0, 2)}, b"ab"))
    put("safetensors", "backwards", header({"a": tensor("U8", [1], 4, 0)}))
    put("safetensors", "dims", header({"a": tensor("U8", [1] * 33, 0, 1)}, b"x"))
    put("safetensors", "long_name", header({"n" * 1025: tensor("U8", [1], 0, 1)}, b"x"))
    put("safetensors", "control_name", header({"a\n": tensor("U8", [1], 0, 1)}, b"x"))
    put("safetensors", "twice", header('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{}}', b"x"))
    put("safetensors", "deep", header('{"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}}', b"x"))
    put("safetensors", "unknown_type", header({"a": tensor("f32", [1], 0, 4)}, b"abcd"))
    put("safetensors", "offsets", header('{"a":{"dtype":"U8","shape":[],"data_offsets":[0]}}'))
    put("safetensors", "metadata_number", header({"__metadata__": {"a": 7}}))
    put("safetensors", "metadata_list", header({"__metadata__": []}))
    put("safetensors", "list", header("[]"))
    put("safetensors", "shape_object", header('{"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}}', b"x"))


# ---- json
def json_seeds():
    put("json", "every_kind", '{"a":[1,-2,3.5,1e300,-0.0,true,false,null],"b":{"c":"text\\u00e9\\n\\ud83d\\ude00"}}')
    put("json", "integers", "[9223372036854775807,9223372036854775808,18446744073709551615,18446744073709551616,-9223372036854775808]")
    put("json", "too_large", "[1e309]")
    put("json", "deep", "[" * 33)
    put("json", "as_deep_as_allowed", "[" * 32 + "]" * 32)
    put("json", "twice", '{"a":1,"a":2}')
    put("json", "zero", b'"\x00"')
    put("json", "mark", b"\xef\xbb\xbf1")
    put("json", "no_utf8", b'"\xff\xc3\x28"')
    put("json", "f11_controls", b'"\xc2\x9b31m \x1b[31m"')
    put("json", "surrogate", '"\\ud800"')
    put("json", "behind", "1 2")
    put("json", "comment", "1//")
    put("json", "long", '"' + "x" * 300 + '"')
    put("json", "ends", '{"a":')
    for name, text in [("true", "true"), ("number", "1.5"), ("integer", "7"), ("negative", "-7"), ("text", '"a"'),
                       ("null", "null"), ("key", '{"key":3}'), ("key_large", '{"key":3000000000}'), ("control", '"\x7f"')]:
        put("json", name, text)
    put("json", "utf8_edges", b'"\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"')
    put("json", "utf8_beyond", b"\xe0\x80\x80 \xed\xa0\x80 \xf0\x80\x80\x80 \xf4\x90\x80\x80 \xf5 \xc1 \xe1\x80")


# ---- cost.json
COST = {
    "format": "lockstep-cost", "version": 1, "about": {"date": "2030-01-01", "cpu": "one"}, "ranks": 2, "nodes": 1,
    "paths": [{
        "name": "all_reduce", "text": "all-reduce, 2 ranks", "bus_factor": 1.0, "limit_text": "copy",
        "limit_bytes_per_s": 1.25e10,
        "points": [{"bytes": 8, "samples": 100, "median_s": 1e-6, "min_s": 9e-7, "max_s": 3e-6, "p95_s": 2e-6, "p99_s": 2.5e-6},
                   {"bytes": 64, "samples": 7, "median_s": 2e-6, "min_s": 1e-6, "max_s": 3e-6, "p95_s": None, "p99_s": None}],
        "model": [{"first_bytes": 0.0, "alpha_s": 1e-6, "beta_s": 0.25}, {"first_bytes": 32.0, "alpha_s": -1.0, "beta_s": 0.5}],
        "held_out": {"count": 1, "median": 0.125, "p90": 0.25, "worst": 0.5}}],
    "pairs": {"bytes": 1024, "ranks": [0, 1], "seconds": [[0.0, 1e-6], [2e-6, 0.0]]},
    "left_out": ["GPUs: there are none"]}


def cost_seeds():
    put("cost", "good", json.dumps(COST, indent=1))
    point = ["paths", 0, "points", 0]
    piece_0 = ["paths", 0, "model", 0]
    for name, path, value in [
            ("f7_alpha", piece_0 + ["alpha_s"], 1e305), ("negative_alpha", piece_0 + ["alpha_s"], -9.4e-3),
            ("f10_min_above_median", point + ["min_s"], 2e-6), ("f10_median_above_max", point + ["max_s"], 9e-7),
            ("f10_paths_twice", ["paths"], COST["paths"] * 2), ("percentile", point + ["p95_s"], 1.0),
            ("version", ["version"], 2), ("format", ["format"], "other"), ("no_ranks", ["ranks"], 0),
            ("about", ["about"], []), ("about_number", ["about", "date"], 3), ("bytes", point + ["bytes"], 64),
            ("samples", point + ["samples"], 0), ("zero_time", point + ["median_s"], 0), ("no_model", ["paths", 0, "model"], []),
            ("first_bytes", piece_0 + ["first_bytes"], 1), ("beta", ["paths", 0, "model", 1, "beta_s"], -1),
            ("pieces_order", ["paths", 0, "model", 1, "first_bytes"], 0), ("count", ["paths", 0, "held_out", "count"], -1),
            ("worst", ["paths", 0, "held_out", "worst"], 0.1), ("rank", ["pairs", "ranks", 0], 7),
            ("rows", ["pairs", "seconds"], [[0.0, 1e-6]]), ("row", ["pairs", "seconds", 0], [0.0]),
            ("own_time", ["pairs", "seconds", 0, 0], 1.0), ("left_out", ["left_out", 0], 3), ("nccl", ["paths", 0, "name"], "all_reduce/nccl"),
            ("bus_factor", ["paths", 0, "bus_factor"], -1)]:
        put("cost", name, json.dumps(changed(COST, path, value)))


# ---- choices
CHOICES = {"format": "lockstep-choices", "version": 1,
           "machines": {"onednn 3, cpu, 2 threads": {"conv2d forward f32 batch 8": {"choice": "onednn:0", "seconds": 1e-3}}}}


def choices_seeds():
    put("choices", "good", json.dumps(CHOICES, indent=1))
    entry = ["machines", "onednn 3, cpu, 2 threads", "conv2d forward f32 batch 8"]
    for name, path, value in [("format", ["format"], "other"), ("version", ["version"], 2), ("machines", ["machines"], []),
                              ("calls", entry[:2], 3), ("no_choice", entry + ["choice"], ""), ("negative", entry + ["seconds"], -1),
                              ("seconds", entry + ["seconds"], "1"), ("entry", entry, None)]:
        put("choices", name, json.dumps(changed(CHOICES, path, value)))


# ---- config
def config_seeds():
    put("config", "every_kind", 'hidden = [ 256, 128 ] # two\nepochs = 20\nlr = 1e-2\nnesterov = true\nlauncher = "none"\n')
    put("config", "f1_mark", b"\xef\xbb\xbfsteps =   1000\n")
    put("config", "f1_columns", 'hidden = ["1\u00e9",  345]')
    put("config", "f8_key", "[\u65e5x]")
    put("config", "f8_open", "[[abl\u00e9")
    put("config", "f8_inline", "a = { \u65e5x = 1 }")
    put("config", "f9_underscore", "steps = 1_000\nseed = 0o20\n")
    put("config", "f10_zero", 'out = "a\\u0000b"')
    put("config", "quoted_key", '"a b" = 1\n\'c\' = 2\n"\\u00e9" = 3')
    put("config", "dotted", "a.b = 1\n[c]\nd = 1\n[[e]]\n")
    put("config", "of_run", '{"chosen": {\n"epochs": "20", "hidden": "256,128", "no-decay-norm": "false"}, "seed": 3}')
    put("config", "of_run_zero", '{"chosen": {"out": "a\\u0000b"}}')
    put("config", "dates", "a = 2020-01-01\nb = 07:32:00\n")
    put("config", "strings", 'a = """\ntwo\nlines"""\nb = \'raw\\\'\nc = "\\t\\u00e9"\n')
    put("config", "lists", "a = [[1], 2]\nb = [\n 1,\n 2.0,\n]\n")
    put("config", "inline", "a = { b = 1 }\n")
    put("config", "numbers", "a = +1.0\nb = -inf\nc = nan\nd = 0x1F\ne = 1e400\n")
    put("config", "twice", "a = 1\na = 2\n")
    put("config", "no_value", "a =\n")
    put("config", "windows", "a = 1\r\nb = 2\r\n")
    put("config", "no_utf8", b"a = \"\xff\"\n")


# ---- devices
def devices_seeds():
    for name, text in [
            ("auto", "auto"), ("cpu", "cpu"), ("cpu_4", " cpu : 4 "), ("gpu", "gpu"), ("all", "-1"), ("count", "3"), ("list", "1,3"),
            ("one", "1,"), ("brackets", "[0, 2]"), ("cuda", "cuda:1"), ("uuid", "GPU-77"), ("uuids", "GPU-77,gpu-78"),
            ("prefix", "GPU-5f3e"), ("index_and_uuid", "2,GPU-77"), ("usable", "usable"), ("usable_2", "usable:2"),
            ("usable_all", "usable:-1"), ("mig", "MIG-1"), ("zero", "0"), ("negative", "-2"), ("negative_index", "1,-3"), ("empty", ""),
            ("spaces", " \t "), ("empty_list", "[]"), ("bracket", "[1"), ("twice", "1,1"), ("missing", "1,,2"), ("beyond", "[7]"),
            ("many", "7"), ("large", "99999999999"), ("cpu_0", "cpu:0"), ("usable_0", "usable:0"), ("word", "tpu"), ("colon", "x:1"),
            ("item", "1,x"), ("f11_escape", "\x1b[31m")]:
        put("devices", name, text)


# ---- launch
def environment(rank, size, lines):
    return bytes([rank, size - 1]) + "\n".join(lines).encode()


MPIRUN = ["OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"]
TORCHRUN = ["RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1", "MASTER_ADDR=node", "MASTER_PORT=29"]
LIGHTNING = ["NODE_RANK=1", "LOCAL_RANK=3", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node", "MASTER_PORT=29"]
STEP = ["SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=2"]


def launch_seeds():
    put("launch", "nothing", environment(0, 1, []))
    put("launch", "mpirun", environment(3, 8, MPIRUN))
    put("launch", "mpirun_alone", environment(0, 1, MPIRUN))
    put("launch", "torchrun", environment(5, 8, TORCHRUN))
    put("launch", "torchrun_alone", environment(0, 1, TORCHRUN))
    put("launch", "torchrun_part", environment(0, 1, TORCHRUN[:3]))
    put("launch", "torchrun_agent", environment(5, 8, TORCHRUN + ["TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=7"]))
    put("launch", "torchrun_port", environment(5, 8, TORCHRUN + ["LOCKSTEP_PORT=70000", "LOCKSTEP_MEET_SECONDS=5"]))
    put("launch", "lightning", environment(7, 8, LIGHTNING))
    put("launch", "lightning_alone", environment(0, 1, LIGHTNING))
    put("launch", "lightning_part", environment(0, 1, LIGHTNING[:3] + LIGHTNING[4:]))
    put("launch", "step", environment(3, 4, STEP))
    put("launch", "step_alone", environment(0, 1, STEP))
    put("launch", "step_tasks", environment(1, 2, STEP + ["SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=2"]))
    put("launch", "batch", environment(0, 1, ["SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_STEP_ID=4294967291"]))
    put("launch", "allocation", environment(0, 1, [
        "SLURM_JOB_ID=7", "SLURM_NNODES=2", "SLURM_GPUS_ON_NODE=a100:4", "SLURM_CPUS_ON_NODE=2", "SLURM_CPUS_PER_TASK=2",
        "SLURM_MPI_TYPE=pmix"]))
    put("launch", "pmi", environment(0, 2, ["PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"]))
    put("launch", "mvapich", environment(0, 2, ["MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_SIZE=2"]))
    put("launch", "two_launchers", environment(0, 2, MPIRUN + ["PMI_RANK=0", "PMI_SIZE=2"]))
    put("launch", "mpi_and_rank", environment(3, 8, MPIRUN + ["RANK=4"]))
    put("launch", "rank_without_size", environment(0, 1, MPIRUN[:1]))
    put("launch", "rank_beyond", environment(0, 1, ["PMI_RANK=2", "PMI_SIZE=2"]))
    put("launch", "f9_rank", environment(0, 1, ["RANK=2147483648"]))
    put("launch", "started_so", environment(0, 1, ["LOCKSTEP_STARTED_WITH=mpirun -np 2"]))
    put("launch", "hostfile", environment(0, 1, ["OMPI_MCA_orte_default_hostfile=f", "CUDA_VISIBLE_DEVICES=1", "PBS_NODEFILE=f",
                                                 "OMPI_MCA_plm=rsh", "OMPI_MCA_hwloc_base_binding_policy=none"]))


# ---- options
def options_seeds():
    put("options", "none", "")
    put("options", "many", "\n".join([
        "--epochs=3", "--batch-size=64", "--lr=0.1", "--schedule=step", "--bucket-mb=2.5", "--loss-scale=1024", "--dtype=bf16",
        "--optimizer=adamw", "--devices=cpu:2", "--accumulate=2", "--watchdog=30", "--warmup-steps=5", "--seed=7"]))
    put("options", "per_rank", "--batch-per-rank\n8\n--steps\n100\n--optimizer\nlars\n--nesterov\n--clip-norm\n1e3")
    put("options", "cost", "--cost=cost.json\n--reduce-dtype=bf16\n--choices=c.json\n--tune=on")
    put("options", "switches", "--cuda-graph=off\n--overlap=on\n--dry-run\n--overwrite\n--keep=0\n--out=o\n--keep-last\n--no-decay-norm")
    put("options", "help", "--help")
    put("options", "version", "--version")
    for name, line in [
            ("f9_octal", "--steps=010"), ("f9_octal_list", "--steps\n-07"), ("large", "--epochs=9223372036854775807"),
            ("larger", "--epochs=9223372036854775808"), ("minus", "--seed=-1"), ("lr_nan", "--lr=nan"), ("lr_text", "--lr=1e-3x"),
            ("bucket", "--bucket-mb=1e9"), ("bucket_empty", "--bucket-mb="), ("loss_scale", "--loss-scale=-1"), ("schedule", "--schedule=x"),
            ("optimizer", "--optimizer=x"), ("batch", "--batch-size=0"), ("batch_large", "--batch-size=9223372036854775807\n--accumulate=9223372036854775807"),
            ("per_rank_large", "--batch-per-rank=9223372036854775807"), ("out_empty", "--out="), ("unknown", "--unknown"), ("word", "word"),
            ("resume_empty", "--resume="), ("both", "--init=a\n--resume=b"), ("devices", "--devices=[1"), ("nodes", "--nodes=-1"),
            ("threads", "--threads=1025"), ("workers", "--workers=-2"), ("watchdog", "--watchdog=0.5"), ("dtype", "--dtype=f64\n--reduce-dtype=bf16"),
            ("config", "--config=x.toml"), ("epsilon", "--epsilon=0\n--optimizer=adam"), ("momentum", "--momentum=1"), ("nesterov", "--nesterov\n--optimizer=adam"),
            ("smoothing", "--label-smoothing=1"), ("launcher", "--launcher=x"), ("cost_alone", "--cost=cost.json"), ("compress", "--compress=powersgd:2"), ("compress_rank", "--compress=powersgd:0")]:
        put("options", name, line)


# ---- state.json
STATE = {
    "format": 2,
    "identity": {"model": "mlp", "seed": 1, "ranks": 2, "threads": 1, "global_batch": 128,
                 "options": {"hidden": "8,4", "optimizer": "sgd"}, "layers": {"layers.0": "linear of input"},
                 "choices": {"layers.0 forward": "onednn:0"}, "buckets": [3, 9]},
    "epoch": 1, "batch": 2, "step": 66, "skipped": 0, "test_loss": 0.5, "test_accuracy": 0.75, "metrics": {"mine": 1.5, "none": None},
    "best_by": "test_accuracy", "best": 0.75, "samples_seen": [33.0, 33.0]}


def state_seeds():
    put("state", "good", json.dumps(STATE, indent=2))
    old = {k: v for k, v in STATE.items() if k not in ("best_by", "best", "metrics", "skipped", "test_loss")}
    old = dict(old, format=1, best_accuracy=0.5, test_accuracy=-1)
    old["identity"] = {k: v for k, v in STATE["identity"].items() if k != "layers"}
    old["identity"]["hidden"] = [8, 4]
    put("state", "format_1", json.dumps(old))
    put("state", "f5_many_layers", json.dumps(changed(old, ["identity", "hidden"], [1] * 2500)))
    put("state", "f5_large_layer", json.dumps(changed(old, ["identity", "hidden"], [2**62, 10**9])))
    put("state", "f10_best_accuracy", json.dumps(changed(old, ["best_accuracy"], 1e308)))
    for name, path, value in [
            ("f2_step", ["step"], 2**63 - 1), ("f2_epoch", ["epoch"], 2**63 - 1), ("f3_samples", ["samples_seen", 0], 1e308),
            ("f10_accuracy", ["test_accuracy"], 7), ("f10_best", ["best"], 1e308), ("negative_step", ["step"], -1),
            ("format", ["format"], 3), ("no_ranks", ["identity", "ranks"], 0), ("ranks_large", ["identity", "ranks"], 2**32 + 1),
            ("options", ["identity", "options"], []), ("option", ["identity", "options", "hidden"], 3), ("metric", ["metrics", "mine"], "x"),
            ("no_accuracy", ["test_accuracy"], None), ("best_by_mine", ["best_by"], "mine"), ("samples_text", ["samples_seen", 0], "1"),
            ("buckets", ["identity", "buckets", 0], 1.5), ("identity", ["identity"], None)]:
        put("state", name, json.dumps(changed(STATE, path, value)))
    put("state", "cut", json.dumps(STATE)[:200])


# ---- tensors: a list of changes to a checkpoint's files; each change is (file, offset, byte)
def tensors_seeds():
    def edits(*changes):
        return b"".join(struct.pack("<BHB", *change) for change in changes)

    put("tensors", "unchanged", b"")
    for which, name in enumerate(["model", "optimizer"]):
        put("tensors", name + "_length", edits((which, 0, 0xFF)))
        put("tensors", name + "_name", edits((which, 60, ord("x"))))
        put("tensors", name + "_cut", edits((254 + which, 100, 0)))
        put("tensors", name + "_empty", edits((254 + which, 0, 0)))
    # Changes the highest byte of each number of the optimizer's states. Some of these bytes hold the sign of a square,
    # others belong to the count of updates.
    for at in range(3, 72, 4):
        put("tensors", "optimizer_byte_%02d" % at, edits((3, at, 0xFF)))
    put("tensors", "nan", edits((3, 71, 0x7F), (3, 70, 0xFF)))
    # Changes the checkpoint with all optional parts. `which` is the first byte of a change: which % 3 selects the file;
    # if which / 3 is odd, the offset counts from the beginning of the data.
    put("tensors", "whole_unchanged", edits((66, 65535, 0)))
    for file, name in enumerate(["model", "optimizer", "average"]):
        put("tensors", f"whole_{name}_length", edits((66 + file, 0, 0xFF)))
        put("tensors", f"whole_{name}_cut", edits((250 + (file + 2) % 3, 100, 0)))
        put("tensors", f"whole_{name}_empty", edits((250 + (file + 2) % 3, 0, 0)))
        for at in range(40, 600, 80):
            put("tensors", f"whole_{name}_name_{at}", edits((66 + file, at, ord("x"))))
        for at in range(3, 200, 28):
            put("tensors", f"whole_{name}_byte_{at}", edits((69 + file, at, 0xFF)))


# ---- torch: pickles in a valid archive, and damaged archives
def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value):
    return b"K" + bytes([value]) if 0 <= value < 256 else b"\x8a\x08" + struct.pack("<q", value)


def items(*values):
    return b"(" + b"".join(values) + b"t"


def name(module, word):
    return b"c%s\n%s\n" % (module.encode(), word.encode())


ORDERED = name("collections", "OrderedDict") + b")R"


def storage(kind, key, numel):
    return items(text("storage"), name("torch", kind + "Storage"), text(key), text("cpu"), integer(numel)) + b"Q"


def torch_tensor(data, offset, shape, strides):
    return (name("torch._utils", "_rebuild_tensor_v2")
            + items(data, integer(offset), items(*map(integer, shape)), items(*map(integer, strides)), b"\x89", ORDERED) + b"R")


def tree(start, **members):
    return start + b"(" + b"".join(text(key) + value for key, value in members.items()) + b"u"


def saved(value, data=bytes(range(24)), form=1):
    return bytes([form]) + piece(b"\x80\x02" + value + b".") + data


def archive(records, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for record, data in records.items():
            file.writestr(zipfile.ZipInfo(record), data, compression)
    return b"\0" + out.getvalue()


def torch_seeds():
    six = storage("Float", "0", 6)
    plain = torch_tensor(six, 0, [2, 3], [3, 1])
    state = tree(ORDERED, **{"module.a": plain, "module.b": torch_tensor(six, 1, [], [])}) + tree(b"}", _metadata=ORDERED) + b"b"
    put("torch", "state_dict", saved(state))
    put("torch", "zip64", saved(state, form=3))
    checkpoint = {"epoch": integer(3), "best": b"G" + struct.pack(">d", 0.5), "args": b"]K\x01a(Ne",
                  "model": tree(b"}", a=torch_tensor(storage("Long", "0", 3), 0, [3], [1]))}
    put("torch", "checkpoint", saved(tree(b"}", **checkpoint)))
    put("torch", "strides", saved(tree(b"}", a=torch_tensor(six, 0, [3, 2], [1, 3]), b=torch_tensor(six, 1, [2, 2], [2, 1]),
                                       c=torch_tensor(six, 5, [0, 4], [1, 1]))))
    put("torch", "shared", saved(tree(b"}", a=torch_tensor(six + b"q\x05", 0, [6], [1]), b=torch_tensor(b"h\x05", 3, [3], [1]),
                                      c=torch_tensor(b"j\x05\0\0\0", 0, [1], [1]))))
    put("torch", "long_put", saved(b"}r\x07\0\0\0" + text("a") + plain + b"s"))
    put("torch", "parameter", saved(tree(b"}", a=name("torch._utils", "_rebuild_parameter") + items(plain, b"\x88", ORDERED) + b"R")))
    for kind in ["Double", "Half", "BFloat16", "Int", "Short", "Char", "Byte", "Bool"]:
        put("torch", "type_" + kind, saved(tree(b"}", a=torch_tensor(storage(kind, "0", 3), 0, [3], [1])),
                                           bytes({"Double": 24, "Int": 12, "Half": 6, "BFloat16": 6, "Short": 6}.get(kind, 3))))
    put("torch", "tuples", saved(tree(b"}", a=plain, b=b"K\x01\x85", c=b"K\x01K\x02\x86", d=b"NNN\x87")))
    put("torch", "code", saved(name("os", "system") + items(text("true")) + b"R"))
    put("torch", "call_of_a_class", saved(name("torch", "FloatStorage") + items(integer(3)) + b"R"))
    put("torch", "call_of_a_text", saved(text("a") + b")R"))
    put("torch", "cycle", saved(b"}q\x01(" + text("model") + b"h\x01u"))
    put("torch", "deep", saved(b"]" * 2000 + b"a" * 1999))
    put("torch", "memo", saved(b"]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))))
    put("torch", "expanded", saved(tree(b"}", a=torch_tensor(six, 0, [2**40], [0]))))
    put("torch", "beyond", saved(tree(b"}", a=torch_tensor(six, 4, [3], [1]))))
    put("torch", "overflow", saved(tree(b"}", a=torch_tensor(six, 0, [2**62, 4], [1, 1]))))
    put("torch", "overflow_strides", saved(tree(b"}", a=torch_tensor(six, 2**63 - 1, [2**63 - 1], [2**63 - 1]))))
    put("torch", "negative", saved(tree(b"}", a=torch_tensor(six, 5, [2], [-1]))))
    put("torch", "offset", saved(tree(b"}", a=torch_tensor(six, -1, [2], [1]))))
    put("torch", "other_size", saved(tree(b"}", a=plain), bytes(23)))
    put("torch", "huge_storage", saved(tree(b"}", a=torch_tensor(storage("Float", "0", 2**62), 0, [1], [1]))))
    put("torch", "no_storage", saved(tree(b"}", a=torch_tensor(storage("Float", "1", 6), 0, [1], [1]))))
    put("torch", "no_tensor", saved(tree(b"}", a=plain, b=integer(1))))
    put("torch", "no_name", saved(b"}(" + integer(1) + plain + b"u"))
    put("torch", "members", saved(tree(b"}", **{"m%d" % i: b"N" for i in range(9)})))
    put("torch", "list", saved(b"]"))
    put("torch", "twice", saved(b"}(" + (text("a") + plain) * 2 + b"u"))
    put("torch", "control_name", saved(tree(b"}", **{"a\n": plain})))
    put("torch", "no_pair", saved(b"}(Nu"))
    put("torch", "no_mark", saved(b"}u"))
    put("torch", "no_value", saved(b"(Q"))
    put("torch", "no_persistent", saved(items(text("module")) + b"Q"))
    put("torch", "dims", saved(tree(b"}", a=torch_tensor(six, 0, [1] * 33, [1] * 33))))
    put("torch", "other_dims", saved(tree(b"}", a=torch_tensor(six, 0, [1], []))))
    put("torch", "arguments", saved(tree(b"}", a=name("torch._utils", "_rebuild_tensor_v2") + items(six) + b"R")))
    put("torch", "long", saved(b"\x8a\x09" + bytes(9)))
    put("torch", "protocol", b"\x01" + piece(b"\x80\x04}."))
    put("torch", "behind", b"\x01" + piece(b"\x80\x02}.}"))
    put("torch", "ends", b"\x01" + piece(b"\x80\x02X\xff\xff\xff\xff"))
    put("torch", "word_ends", b"\x01" + piece(b"\x80\x02cos"))
    good = {"m/data.pkl": b"\x80\x02" + tree(b"}", a=plain) + b".", "m/data/0": bytes(24), "m/byteorder": b"little"}
    put("torch", "archive", archive(good))
    put("torch", "archive_big", archive({**good, "m/byteorder": b"big"}))
    put("torch", "archive_compressed", archive(good, zipfile.ZIP_DEFLATED))
    put("torch", "archive_script", archive({**good, "m/constants.pkl": b""}))
    put("torch", "archive_code", archive({**good, "m/code/a.py": b""}))
    put("torch", "archive_two", archive({**good, "n/data.pkl": b""}))
    put("torch", "archive_no_pickle", archive({"m/data/0": b""}))
    whole = archive(good)
    put("torch", "archive_cut", whole[:-30])
    put("torch", "archive_flipped", whole.replace(b"m/data/0", b"m/data/1", 1))
    put("torch", "archive_crc", whole.replace(bytes(24), bytes(23) + b"x", 1))
    directory = whole.index(b"PK\x01\x02")
    put("torch", "archive_outside", whole[:directory + 42] + b"\xf0\xff\xff\x00" + whole[directory + 46:])
    put("torch", "archive_large", whole[:directory + 20] + b"\xf0\xff\xff\x00" * 2 + whole[directory + 28:])
    put("torch", "archive_no_64", whole[:directory + 20] + b"\xff" * 8 + whole[directory + 28:])
    put("torch", "archive_encrypted", whole[:directory + 8] + b"\x01" + whole[directory + 9:])
    put("torch", "archive_overlap", archive({**good, "m/in": archive({"m/data/0": bytes(24)})[1:]}))
    put("torch", "archive_count", whole[:-12] + b"\xff\xff" + whole[-10:])
    put("torch", "archive_far", whole[:-6] + b"\xff\xff\xff\xff" + whole[-2:])
    put("torch", "old", b"\0\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")
    put("torch", "other", b"\0GIF89a")
    put("torch", "empty", b"\0")


# ---- image
# JPEG files that tests/support/image_files.cpp wrote. "jpeg" is an RGB file with an orientation; the other names tell
# how the files differ.
JPEGS = {
    "jpeg":
        "/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAASUkqAAgAAAABABIBAwABAAAABgAAAAAAAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcg"
        "LikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
        "T09PT09PT09PT09PT09PT09PT0//wAARCAAJABEDASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUF"
        "BAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlq"
        "c3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEA"
        "AwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYk"
        "NOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6"
        "wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwBkM9jFIFt7FpABk54JPoMAj9amSTUpGQRwJEAMnCgZ/A7v0qxa"
        "/wCoP4fzqfWf+Rcuf+Af+hrWONqxo1o0ZJy5rattrV22McPL2k4xhFRu7bX/ADuivjXf+ekP/gOP8KK5uin7FfyQ/wDAf/tj2/7Gl/z8/wDJUf/Z",
    "grey_progressive":
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpR"
        "Uk//wgALCAARAAkBAREA/8QAFwAAAwEAAAAAAAAAAAAAAAAAAQIEA//aAAgBAQAAAAHIsttv/8QAGhAAAgMBAQAAAAAAAAAAAAAAAAMBAhIEEP/aAAgB"
        "AQABBQKKc1DaCGUNvF+f/8QAIBAAAQIFBQAAAAAAAAAAAAAAAQADAhARM5ESISJRcf/aAAgBAQAGPwI86kdCqtuYCGhmI+7K23gz/8QAHRAAAQMFAQAA"
        "AAAAAAAAAAAAAQARMRBxgcHw0f/aAAgBAQABPyEkBASDOzC57aBu149Lnt1//9oACAEBAAAAEHv/xAAbEAACAgMBAAAAAAAAAAAAAAABERAxIUFRgf/a"
        "AAgBAQABPxBiQCQaYAAMfU7UQbt7qPEst8iDpH//2Q==",
    "cmyk_progressive":
        "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwANCQoLCggNCwoLDg4NDxMgFRMSEhMnHB4XIC4pMTAuKS0sMzpKPjM2RjcsLUBXQUZMTlJTUjI+WmFaUGBKUVJP"
        "/8IAFAgACQAJBEMRAE0RAFkRAEsRAP/EABoAAAICAwAAAAAAAAAAAAAAAAEEAgMABQb/2gAOBEMATQBZAEsAAAABqEsIYXpdnr3HeRc//8QAGhAAAgID"
        "AAAAAAAAAAAAAAAAAAIBAwQQEv/aAAgBQwABBQKExkO6CvX/xAAaEAABBQEAAAAAAAAAAAAAAAADAAECEBES/9oACAFNAAEFAmJHezodf//EABoQAAIC"
        "AwAAAAAAAAAAAAAAAAAEAQIRFDT/2gAIAVkAAQUCjZsYaHeE/8QAGhAAAgIDAAAAAAAAAAAAAAAAAAMBAgQQEf/aAAgBSwABBQK65OYovX//xAAcEAAB"
        "AwUAAAAAAAAAAAAAAAABAAMRECIzUZH/2gAIAUMABj8CN8kaErG5wV//xAAcEAACAAcAAAAAAAAAAAAAAAABAwAQESIzYZH/2gAIAU0ABj8CsQSNmkY1"
        "8M//xAAfEAABAQkBAAAAAAAAAAAAAAABAAIDEBESMnGBorH/2gAIAVkABj8CEqWcBX8hPNew/8QAHhAAAQEJAAAAAAAAAAAAAAAAAQMAAhASITEyosH/"
        "2gAIAUsABj8CIXXvWUvcbPUx/8QAGxABAAEFAQAAAAAAAAAAAAAAATEAEBGBwfD/2gAIAUMAAT8hSCCQ2W4rz3b/AP/EABsQAAEEAwAAAAAAAAAAAAAA"
        "AAEAECExweHw/9oACAFNAAE/IRQj17i57L//xAAdEAABAgcAAAAAAAAAAAAAAAAAEfABECFhgZHR/9oACAFZAAE/IYqCjn2o/wAB5ZL/xAAaEAEAAQUA"
        "AAAAAAAAAAAAAAABABARMdHw/9oACAFLAAE/IQCQC/Kjvor/AP/aAA4EQwBNAFkASwAAABA4af/EABkQAQEBAAMAAAAAAAAAAAAAABEBEDFBgf/aAAgB"
        "QwABPxBEgBFjJIivo8mQemf/xAAaEAEAAgMBAAAAAAAAAAAAAAABEBEhMUFR/9oACAFNAAE/EB/ZAGPlBhrNxB4j/8QAGxAAAQQDAAAAAAAAAAAAAAAA"
        "EQEgMUFRYYH/2gAIAVkAAT8QvxiFesWhLNt//8QAGRAAAwEBAQAAAAAAAAAAAAAAAREhEDFB/9oACAFLAAE/EJqQJANxqGIAOiZt4z//2Q==",
    "scans":
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpR"
        "Uk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//wAARCAAJAAkDAREAAhEB"
        "AxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS"
        "0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKz"
        "tLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/AGQz2MUgW3sWkAGTngk+gwCP1pftd9/z4Rf9+f8A7Krt"
        "r/qD+H86t1//xAAfAQADAQEBAQEBAQEBAAAAAAAAAQIDBAUGBwgJCgv/xAC1EQACAQIEBAMEBwUEBAABAncAAQIDEQQFITEGEkFRB2FxEyIygQgUQpGh"
        "scEJIzNS8BVictEKFiQ04SXxFxgZGiYnKCkqNTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqCg4SFhoeIiYqSk5SVlpeYmZqio6Sl"
        "pqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2dri4+Tl5ufo6ery8/T19vf4+fr/2gAIAQIRAD8A05cxqpXko+iv+Z0ewxX/AD9f/kv/AMiRm/8A"
        "uc/l+aPiD//aAAgBAxEAPwDJ4XC07qpVV12Tf46Id8t7T/A8+n8SOk//2Q==",
}


def png(kind, width, height, bits=8, chunks=(), interlaced=0, pixels=None):
    """kind: PNG's colour type."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    row = (width * channels * bits + 7) // 8
    data = b"".join(b"\0" + bytes((7 * y + x) % 256 for x in range(row)) for y in range(height)) if pixels is None else pixels
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, bits, kind, 0, 0, interlaced))
            + b"".join(chunk(*c) for c in chunks) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def image_seeds():
    for name, text in JPEGS.items():
        data = base64.b64decode(text)
        put("image", name, data)
        put("image", name + "_cut", data[:-9])
        put("image", name + "_flipped", data[:-40] + bytes([data[-40] ^ 0x55]) + data[-39:])
    data = base64.b64decode(JPEGS["jpeg"])
    size = data.index(b"\xff\xc0") + 5
    put("image", "jpeg_claims_most", data[:size] + b"\xff\xdc\xff\xdc" + data[size + 4:])
    put("image", "jpeg_12_bits", data[:size - 1] + b"\x0c" + data[size:])
    scans = base64.b64decode(JPEGS["scans"])
    last = scans.rindex(b"\xff\xda")
    put("image", "many_scans", scans[:last] + scans[last:-2] * 120 + scans[-2:])
    big = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
    put("image", "png", png(2, 5, 4, chunks=[(b"eXIf", big)]))
    put("image", "png_grey", png(0, 5, 4, bits=2))
    put("image", "png_alpha_16", png(6, 3, 2, bits=16))
    put("image", "png_palette", png(3, 2, 2, bits=1, chunks=[(b"PLTE", bytes(range(6))), (b"tRNS", b"\0")]))
    put("image", "png_grey_alpha", png(4, 9, 8))
    # Interlaced PNG files have seven passes. For a picture of one pixel, all passes together have only one row.
    put("image", "png_interlaced", png(2, 1, 1, interlaced=1))
    put("image", "png_claims_most", png(2, 0x7FFFFFFF, 0x7FFFFFFF, pixels=b""))
    put("image", "png_claims_much", png(2, 8192, 8192, pixels=b""))
    put("image", "png_cut", png(2, 5, 4)[:-20])
    put("image", "png_short", png(2, 5, 4, pixels=b"\0" * 30))
    put("image", "other", b"GIF89a")
    put("image", "empty", b"")


# ---- packed: a byte of flags, then a file. Flag 1: the reader corrects all checksums except those of samples. Flag 2:
# the reader also corrects those of samples.
def packed(records, version=1, train=None, test=1, classes=(b"a", b"b"), store=1, resized=0, more=b"", tail=b"", flags=0):
    """records: bytes, label, width, height, orientation, format, name."""
    index, samples, names = b"".join(struct.pack("<I", len(name)) + name for name in classes), b"", b""
    for data, label, width, height, orientation, kind, name in records:
        index += struct.pack("<QQIIIIBBHI", 16 + len(samples), len(data), zlib.crc32(data), label, width, height, orientation,
                             kind, len(name), 0)
        samples += data
        names += name
    index += names + more
    begin = b"LSPACK\r\n" + struct.pack("<II", version, 0)
    end = struct.pack("<QQQQIIII", 16 + len(samples), len(index), len(records) - test if train is None else train, test,
                      len(classes), store, resized, zlib.crc32(index)) + b"LSPACKED" + bytes(4)
    return bytes([flags]) + begin + samples + index + end + struct.pack("<I", zlib.crc32(begin + end)) + tail


def packed_seeds():
    pixels = [(bytes(range(12)), 0, 2, 2, 1, 0, b"train/a/1.jpg"), (bytes(range(18)), 1, 3, 2, 6, 1, b""),
              (bytes(range(60)), 0, 4, 5, 3, 0, b"val/a/x.jpg")]
    jpeg = base64.b64decode(JPEGS["jpeg"])
    at = jpeg.index(b"\xff\xc0") + 5
    height, width = struct.unpack(">HH", jpeg[at:at + 4])
    files = [(png(2, 5, 4), 0, 5, 4, 1, 1, b"train/a/1.png"), (jpeg, 1, width, height, 1, 0, b"train/b/1.jpg"),
             (png(0, 5, 4, bits=2), 1, 5, 4, 1, 1, b"val/b/x.png")]
    large = (bytes(16 * 17 * 3), 0, 16, 17, 5, 0, b"large.jpg")
    put("packed", "pixels", packed(pixels))
    put("packed", "pixels_resized", packed(pixels, resized=2))
    put("packed", "pixels_large", packed([large, large]))
    put("packed", "files", packed(files, store=0))
    put("packed", "files_other_size", packed([files[0][:2] + (6,) + files[0][3:]] + files[1:], store=0))
    put("packed", "files_damaged", packed([(b"x" + data, *rest) for data, *rest in files], store=0))
    put("packed", "repaired", packed(pixels, flags=3))
    good = packed(pixels)
    put("packed", "empty", b"\0")
    put("packed", "begin", good[:30])
    put("packed", "cut", good[:-9])
    put("packed", "goes_on", good + b"x")
    put("packed", "version", packed(pixels, version=2))
    put("packed", "flipped_sample", good[:20] + b"\xff" + good[21:])
    put("packed", "flipped_index", good[:110] + b"\xff" + good[111:])
    put("packed", "flipped_end", good[:-30] + b"\xff" + good[-29:])
    put("packed", "index_place", b"\1" + good[1:-64] + b"\xff" + good[-63:])
    put("packed", "train_none", packed(pixels, train=0))
    put("packed", "train_many", packed(pixels, train=2**64 - 1))
    put("packed", "test_many", packed(pixels, train=2, test=2**61))
    put("packed", "one_more", packed(pixels, train=3))
    put("packed", "no_classes", packed(pixels, classes=()))
    put("packed", "store", packed(pixels, store=2))
    put("packed", "index_longer", packed(pixels, more=b"x"))
    for name, change in [("label", {1: 2}), ("width_0", {2: 0}), ("size_most", {2: 2**32 - 1, 3: 2**32 - 1}), ("size", {2: 4}),
                         ("orientation", {4: 9}), ("format", {5: 2})]:
        record = list(pixels[0])
        for place, value in change.items():
            record[place] = value
        put("packed", name, packed([tuple(record)] + pixels[1:]))
    offset = good.rindex(b"train/a") - 3 * 40 + 40  # offset of the second record
    put("packed", "offset", b"\1" + good[1:offset] + b"\x1d" + good[offset + 1:])


# ---- packed_tokens: a byte of flags, a byte with the length of a window less 1, then a file. Flag 1: the reader
# corrects all checksums except those of blocks. Flag 2: the reader also corrects those of blocks.
def packed_tokens(parts, version=1, content=1, train=None, validation=1, vocabulary=None, kind=3, width=2, more=b"", tail=b"",
                  flags=0):
    """parts: ids, name, and what the index says otherwise: size, largest, its place."""
    ids, index, names, most = b"", b"", b"", 0
    for numbers, name, *told in parts:
        size, largest, place = told or (len(numbers), max(numbers), numbers.index(max(numbers)))
        ids += b"".join(number.to_bytes(width or 1, "little") for number in numbers)
        index += struct.pack("<QQQII", size, 7, place, largest, len(name))
        names += name
        most = max(most, largest)
    index += names + b"".join(struct.pack("<I", zlib.crc32(ids[at:at + 65536])) for at in range(0, len(ids), 65536)) + more
    begin = b"LSPACK\r\n" + struct.pack("<II", version, content)
    end = struct.pack("<QQQQIIII", 16 + len(ids), len(index), len(parts) - validation if train is None else train, validation,
                      most + 1 if vocabulary is None else vocabulary, kind, width, zlib.crc32(index)) + b"LSPACKED" + bytes(4)
    return bytes([flags, 2]) + begin + ids + index + end + struct.pack("<I", zlib.crc32(begin + end)) + tail


def packed_tokens_seeds():
    parts = [([5, 300, 7, 300, 1, 2, 3], b"a_train.bin"), ([2], b""), ([0, 0, 256, 4], b"val.bin")]
    text = [(list(b"some text to train on"), b"train"), (list(b"the rest"), b"val")]
    good = packed_tokens(parts)
    name = "packed_tokens"
    put(name, "tokens", good)
    put(name, "text", packed_tokens(text, kind=2, width=1))
    put(name, "bytes", packed_tokens(text, width=1))
    put(name, "wide", packed_tokens([([70000, 1, 2**31 - 2], b"a"), ([1, 2, 3, 4], b"b")], width=4))
    put(name, "blocks", packed_tokens([([1, 2, 3] * 14000, b"a"), ([4, 5] * 10, b"b")]))
    put(name, "repaired", packed_tokens(parts, flags=3))
    put(name, "empty", b"\0\0")
    put(name, "begin", good[:30])
    put(name, "cut", good[:-9])
    put(name, "goes_on", good + b"x")
    put(name, "version", packed_tokens(parts, version=2))
    put(name, "pictures", packed_tokens(parts, content=0))
    put(name, "content", packed_tokens(parts, content=9))
    put(name, "flipped_id", good[:20] + b"\xff" + good[21:])
    put(name, "flipped_index", good[:60] + b"\xff" + good[61:])
    put(name, "flipped_end", good[:-30] + b"\xff" + good[-29:])
    put(name, "index_place", b"\1" + good[1:-64] + b"\xff" + good[-63:])
    put(name, "no_train", packed_tokens(parts, train=0))
    put(name, "train_many", packed_tokens(parts, train=2**64 - 1))
    put(name, "one_less", packed_tokens(parts, train=1))
    put(name, "kind", packed_tokens(parts, kind=1))
    put(name, "text_parts", packed_tokens(text + text, kind=2, width=1))
    put(name, "text_wide", packed_tokens(text, kind=2))
    put(name, "width", packed_tokens(parts, width=3))
    put(name, "vocabulary", packed_tokens(parts, vocabulary=5))
    put(name, "index_longer", packed_tokens(parts, more=b"x"))
    put(name, "none", packed_tokens([([], b"a", 0, 0, 0)] + parts[1:]))
    put(name, "many", packed_tokens([parts[0] + (2**63, 300, 1)] + parts[1:]))
    put(name, "largest", packed_tokens([parts[0] + (7, 65536, 1)] + parts[1:]))
    put(name, "place", packed_tokens([parts[0] + (7, 300, 7)] + parts[1:]))
    put(name, "other_largest", packed_tokens([parts[0] + (7, 299, 1)] + parts[1:]))
    put(name, "beyond", packed_tokens([([2**32 - 1, 2, 3, 4], b"a", 4, 9, 0), ([1], b"b")], width=4))


# ---- tokens
def tokens(length, vocabulary, data):
    return struct.pack("<BH", length - 1, vocabulary - 1) + data


def token_header(magic, version, count):
    return struct.pack("<3I", magic, version, count) + bytes(1012)


def tokens_seeds():
    ids = struct.pack("<9H", *range(9))
    wide = struct.pack("<5I", 1, 70000, 3, 4, 5)
    put("tokens", "plain", tokens(2, 65536, ids))
    put("tokens", "gpt2", tokens(3, 10, token_header(20240520, 1, 9) + ids))
    put("tokens", "llama3", tokens(1, 65536, token_header(20240801, 7, 5) + wide))
    put("tokens", "large_id", tokens(4, 65536, token_header(20240801, 7, 5) + struct.pack("<5I", 1, 2, 0xFFFFFFFF, 4, 5)))
    put("tokens", "vocabulary", tokens(2, 4, ids))
    put("tokens", "one_window_too_long", tokens(9, 65536, ids))
    put("tokens", "odd", tokens(2, 65536, ids + b"a"))
    put("tokens", "empty", tokens(2, 65536, b""))
    put("tokens", "version", tokens(2, 65536, token_header(20240520, 2, 9) + ids))
    put("tokens", "count_0", tokens(2, 65536, token_header(20240520, 1, 0)))
    put("tokens", "count_below_0", tokens(2, 65536, token_header(20240801, 7, 0xFFFFFFF0)))
    put("tokens", "short", tokens(2, 65536, token_header(20240520, 1, 10) + ids))
    put("tokens", "long", tokens(2, 65536, token_header(20240520, 1, 8) + ids))
    put("tokens", "header_cut", tokens(2, 65536, token_header(20240520, 1, 9)[:40]))


# ---- lists
def lists_seeds():
    def two(name, train, val):
        put("lists", name, b"\1" + piece(train) + val)
    two("caffe", b"a/1.jpg 0\na/2.jpg 1\nb c.jpg 0\n", b"d.jpg 1\n")
    two("names", b"\xef\xbb\xbf# by hand\r\na.jpg,cat\r\n\r\n./b,c.jpg\tbig dog\r\n", b"/x/a.png , cat")
    two("bytes", b"a\xff.jpg \xfe\n\tb.jpg   \xc3\xa9 \n", b"c \xfe\n")
    two("return", b"a\r 0\r\r\n./#b 1\n./ c 1\n", b"d 1")
    two("twice", b"a 0\n./a 0\nb 007\n" + b"".join(b"c%d %d\n" % (i, i) for i in range(1, 7)), b"a 0\na 0")
    two("two_labels", b"a 0\nb 1\na 1\n", b"a 0")
    two("two_labels_of_two", b"a 0\nb 1\n", b"b 0")
    two("no_label", b"a.jpg\n", b"a 0")
    two("no_path", b",a\n", b"a 0")
    two("empty", b"#\n", b"a 0")
    two("empty_second", b"a 0", b"\n \n")
    two("mixed", b"a 0\nb cat", b"a 0")
    two("mixed_names", b"a cat\nb 0", b"a cat")
    two("negative", b"a 0\nb -1", b"a 0")
    two("large", b"a 0\nb 2", b"a 0")
    two("largest", b"a 99999999999999999999999", b"a 0")
    two("gap", b"a 0\nb 2\nc 2", b"a 0")
    two("other_class", b"a cat", b"a dog")
    two("other_number", b"a 0", b"a 1")
    two("none", b"a! 0", b"a 0")
    two("zero", b"a 0\nb\0 0", b"a 0")
    two("utf_16", "a 0\n".encode("utf-16"), b"a 0")
    two("line_longest", b"x" * 8190 + b" 0\n", b"a 0")
    two("line_long", b"x" * 8191 + b" 0\n", b"a 0")
    two("png", png(2, 5, 4), b"a 0")
    put("lists", "split", b"\0" + piece(b"".join(b"p%d,%d\n" % (i, i % 3) for i in range(12))))
    put("lists", "split_nothing", b"\0" + piece(b"a 0\nb 1"))
    put("lists", "split_twice", b"\0" + piece(b"a 0\nb 0\na 0"))


# ---- units
def units_seeds():
    for name, value in [("zero", 0.0), ("one", 1.0), ("limit", 1023.999), ("kib", 1024.0), ("mega", 9.995e6), ("large", 1.7e308),
                        ("small", 5e-324), ("nan", float("nan")), ("inf", float("inf")), ("negative", -1536.0), ("round", 999.9996)]:
        put("units", name, struct.pack("<dB", value, 3))


def main():
    shutil.rmtree(SEEDS, ignore_errors=True)
    for make in (idx_seeds, cifar10_seeds, safetensors_seeds, json_seeds, cost_seeds, choices_seeds, config_seeds, devices_seeds,
                 launch_seeds, options_seeds, lists_seeds, state_seeds, tensors_seeds, tokens_seeds, torch_seeds, units_seeds,
                 image_seeds, packed_seeds, packed_tokens_seeds):
        make()


if __name__ == "__main__":
    main()
