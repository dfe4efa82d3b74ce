//! Instruction sets, packed weights, matrix products, vector helpers and the thread team.
//!
//! This folder is the only place of the crate with `unsafe`: every public function checks lengths and the
//! instruction set first, and panics where lengths do not fit, so code outside stays safe.
#![allow(unsafe_code)]
// Every vector load in this folder is an unaligned one.
#![allow(clippy::cast_ptr_alignment)]
// Lanes, chains and tokens of a block are counted together over several arrays; unrolled, the index is a constant.
#![allow(clippy::needless_range_loop)]

mod activations;
mod attend;
mod choose;
mod format;
mod isa;
mod kernels;
mod kv;
mod lanes;
mod math;
mod matmul;
mod memory;
mod pack;
mod team;
#[cfg(test)]
mod tests;

pub use activations::{Activations, GROUP, Grain, QGroup, QuantizedRows};
pub use attend::{KvBlock, Seen, Tile, TileShape};
pub use choose::choose;
pub use isa::Isa;
pub use kv::{KvType, load as load_row, store_key, store_value};
pub use math::{
    add, ask, axpy, dot_f32, exp_in_place, gated, rms_norm, rotate, scale, silu_in_place, softmax,
    sum_of_squares,
};
pub use matmul::{Factors, Gate, Matmul, SharedOut, matmul};
pub use memory::{AlignedBytes, bytes_of, floats, floats_mut, words, words_mut};
pub use pack::{Lines, PackError, PackedMatrix, TILE};
pub use team::Team;
