#!/usr/bin/env bash
# usage: mksysroot.sh OUT_DIR RUSTC
# Builds std for aarch64-apple-darwin once, from RUSTC's own source, as a plain sysroot: later builds
# need no unstable flag. Stamped with the compiler's version.
set -euo pipefail
out=$1
rustc=$2
target=aarch64-apple-darwin
stamp=$("$rustc" -V)
[ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ] && exit 0

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/src"
echo 'pub fn f() {}' > "$tmp/src/lib.rs"
cat > "$tmp/Cargo.toml" <<TOML
[package]
name = "sysroot-seed"
version = "0.0.0"
edition = "2021"
[profile.dev]
debug = 0
TOML
# RUSTC_BOOTSTRAP lets a stable compiler build std; it is set for this step alone.
(cd "$tmp" && RUSTC=$rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$tmp/target cargo build -q \
    -Z build-std=std,panic_abort,test -Z build-std-features=panic-unwind --target $target)

rm -rf "$out"
lib=$out/lib/rustlib/$target/lib
mkdir -p "$lib"
cp "$tmp/target/$target/debug/deps/"*.rlib "$lib/"
rm -f "$lib"/libsysroot_seed-*

# cargo builds panic_abort with the profile's strategy (unwind); rustc wants it built with abort.
cd "$lib"
meta=$(basename libpanic_abort-*.rlib .rlib)
meta=${meta#libpanic_abort-}
RUSTC_BOOTSTRAP=1 "$rustc" "$("$rustc" --print sysroot)/lib/rustlib/src/rust/library/panic_abort/src/lib.rs" \
    --crate-name panic_abort --edition 2024 --crate-type rlib -Cpanic=abort --target $target --sysroot "$out" \
    -Cmetadata="$meta" -Cextra-filename="-$meta" -Zforce-unstable-if-unmarked -Awarnings --out-dir . \
    --extern core="$(echo libcore-*.rlib)" --extern libc="$(echo liblibc-*.rlib)" --extern cfg_if="$(echo libcfg_if-*.rlib)"
echo "$stamp" > "$out/stamp"
