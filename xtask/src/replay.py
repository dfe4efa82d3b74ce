"""Runs recorded launches of the Metal kernels on an NVIDIA GPU, as PTX, and compares what they leave in memory with what
softmetal left. Needs nothing but Python and the GPU's driver. See `cargo xtask replay`.

    python3 replay.py [FOLDER]
"""

import array
import collections
import ctypes
import glob
import json
import math
import os
import struct
import sys

# The largest difference, in parts of a value and a thousandth of the largest one: rounding of f32 sums in another order,
# and one level of the smaller types.
CLOSE = {"f32": 2e-3, "f16": 4e-3, "bf16": 2e-2}
# Kernels that only move or choose numbers: every bit counts.
EXACT = ("copy", "sample", "transfer")
MEMORY = 256 << 20


class Gpu:
    """The driver API of CUDA, as far as a launch needs it."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(MEMORY))
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()

    def call(self, function, *args):
        code = getattr(self.lib, function)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()}")

    def module(self, ptx):
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        return module

    def write(self, at, data):
        if data:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.memory.value + at), data, ctypes.c_size_t(len(data)))

    def read(self, at, length):
        out = ctypes.create_string_buffer(max(length, 1))
        if length:
            self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(self.memory.value + at), ctypes.c_size_t(length))
        return out.raw[:length]

    def launch(self, module, kernel, launch, data):
        """Runs a launch; returns (name, alignment, bytes after softmetal, bytes after this GPU) of its results."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel["entry"].encode())
        self.write(0, bytes(launch["params"]))
        pointers, places, at, end = [self.memory.value], [], 0, 512
        for length, align, result, name in launch["args"]:
            before, after = data[at : at + length], data[at + length : at + 2 * length]
            at += 2 * length
            # At an odd place, as in the tests.
            start = -(-end // (2 * align)) * 2 * align + align
            end = start + length
            self.write(start, before)
            pointers.append(self.memory.value + start)
            places.append((start, length, result, name, align, after))
        values = [ctypes.c_uint64(pointer) for pointer in pointers[: kernel["buffers"]]]
        offsets = (ctypes.c_uint32 * 8)()
        args = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        args.append(ctypes.cast(offsets, ctypes.c_void_p))
        sizes = [ctypes.c_uint(n) for n in launch["groups"] + launch["threads"] + [launch["memory"]]]
        self.call("cuLaunchKernel", function, *sizes, None, (ctypes.c_void_p * len(args))(*args), None)
        self.call("cuCtxSynchronize")
        return [(name, align, after, self.read(start, length)) for start, length, result, name, align, after in places if result]


def kind(launch, name, align):
    """The type of an argument's elements."""
    if name in ("keys", "values") and launch["family"] in ("rope", "qkv"):
        return ("f32", "f16", "bf16", "q8")[launch["constants"]["0"]]
    if align >= 4:
        return "f32"
    return "bf16" if launch["function"].endswith("bf16") else "f16"


def numbers(data, kind):
    if kind == "f32":
        return array.array("f", data)
    if kind == "f16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    words = array.array("H", data)
    return array.array("f", struct.pack(f"<{len(words)}I", *(word << 16 for word in words)))


def difference(expected, found, kind):
    """How far two pieces of memory are apart, as CLOSE measures it; infinity where they are not comparable."""
    if kind == "q8":
        far = sum(abs((a ^ 128) - (b ^ 128)) > 1 for a, b in zip(expected, found))
        return 0.0 if far <= len(expected) // 100 else math.inf
    if len(expected) % (4 if kind == "f32" else 2):
        return math.inf
    a, b = numbers(expected, kind), numbers(found, kind)
    largest = max((abs(x) for x in a if math.isfinite(x)), default=0.0)
    worst = 0.0
    for x, y in zip(a, b):
        if math.isfinite(x) and math.isfinite(y):
            worst = max(worst, abs(x - y) / (abs(x) + 1e-3 * largest + 1e-30))
        elif not (x == y or (math.isnan(x) and math.isnan(y))):
            return math.inf
    return worst


def check(launch, results):
    """The worst difference of a launch, and what is wrong with it."""
    worst, wrong = 0.0, []
    for name, align, expected, found in results:
        if expected == found:
            continue
        if launch["family"] in EXACT and name != "values":
            wrong.append(f"`{name}` is not the same bit by bit")
            continue
        type_ = kind(launch, name, align)
        off = difference(expected, found, type_)
        worst = max(worst, off)
        if off > CLOSE.get(type_, 0.0):
            wrong.append(f"`{name}` ({type_}) is off by {off:.2g}")
    return worst, wrong


def main(folder):
    launches = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        with open(path) as lines:
            for line in lines:
                launch = json.loads(line)
                launches[launch["id"]].append(launch)
    gpu = Gpu()
    count, failures, worst = collections.Counter(), [], collections.defaultdict(float)
    for identity, group in sorted(launches.items()):
        with open(os.path.join(folder, identity + ".json")) as file:
            ptx = json.load(file)
        kernels = {kernel["name"]: kernel for kernel in ptx["kernels"]}
        module = gpu.module(ptx["text"] if "text" in ptx else ptx["ptx"])
        count["specialisations"] += 1
        for launch in group:
            if launch["data"] is None:
                count["left out for their size"] += 1
                continue
            with open(os.path.join(folder, launch["data"]), "rb") as file:
                data = file.read()
            results = gpu.launch(module, kernels[launch["function"]], launch, data)
            off, wrong = check(launch, results)
            worst[launch["function"]] = max(worst[launch["function"]], off)
            same = all(expected == found for _, _, expected, found in results)
            count["failed" if wrong else "the same bit by bit" if same else "close"] += 1
            failures += [f"{launch['function']} {launch['groups']} x {launch['threads']}: {text}" for text in wrong]
        gpu.call("cuModuleUnload", module)
    total = sum(map(len, launches.values()))
    print(f"{gpu.name}: {total} launches, " + ", ".join(f"{number} {what}" for what, number in count.items()))
    far = sorted(((off, name) for name, off in worst.items() if off), reverse=True)[:5]
    print("furthest from softmetal: " + ", ".join(f"{name} {off:.1e}" for off, name in far))
    for failure in failures[:40]:
        print("FAILED " + failure)
    return 1 if failures or not count["the same bit by bit"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))))
