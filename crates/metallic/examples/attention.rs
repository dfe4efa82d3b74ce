//! Attention: three steps by hand, the same in one, grouped heads, windows, and rows that may see nothing.
//!
//! `cargo run -p metallic --example attention -- --device cpu`

mod common;

use std::io::Write;

use metallic::Tensor;
use metallic::tensor::{DType, Mask, Rope, RopePairs, Sdpa};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let device = common::open(args)?;
    writeln!(out, "on {}", device.info().name)?;
    let (tokens, heads, kv_heads, head_dim) = (17, 8, 2, 64);

    // Projections give [tokens, heads, head_dim]; attention wants [heads, tokens, head_dim]: a view away.
    let q = Tensor::randn(&device, DType::F32, [tokens, heads, head_dim], 1)?;
    let k = Tensor::randn(&device, DType::F32, [tokens, kv_heads, head_dim], 2)?;
    let v = Tensor::randn(&device, DType::F32, [tokens, kv_heads, head_dim], 3)?.transpose(0, 1)?;

    // Positions enter by rotation.
    let positions: Vec<u32> = (0..tokens as u32).collect();
    let positions = Tensor::from_slice(&device, &positions, [tokens])?;
    let freqs: Vec<f32> =
        (0..head_dim / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    let freqs = Tensor::from_slice(&device, &freqs, [head_dim / 2])?;
    let rope = Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
    let q = q.rope(rope, &positions, &freqs)?.transpose(0, 1)?;
    let k = k.rope(rope, &positions, &freqs)?.transpose(0, 1)?;

    // By hand: scores, softmax, weighted sum. Every key/value head serves four query heads, by a stride of 0.
    let scale = 1.0 / (head_dim as f32).sqrt();
    let group = heads / kv_heads;
    let shared = |x: &Tensor| {
        x.reshape([kv_heads, 1, tokens, head_dim])?.broadcast_to([kv_heads, group, tokens, head_dim])
    };
    let grouped = q.reshape([kv_heads, group, tokens, head_dim])?;
    let scores = (grouped.matmul(&shared(&k)?.t()?)? * scale).tensor()?;
    let by_hand = scores.softmax()?.matmul(&shared(&v)?)?;

    // In one pass, without ever holding the scores.
    let full = q.sdpa(&k, &v, Sdpa { scale, mask: Mask::Full, softcap: None }, None)?;
    let off = (full.reshape(by_hand.shape())? - &by_hand).tensor()?;
    let off = off.to_vec::<f32>()?.iter().fold(0f32, |most, x| most.max(x.abs()));
    writeln!(
        out,
        "{heads} heads over {kv_heads}, {tokens} tokens: by hand and in one pass differ by {off:.1e}"
    )?;
    writeln!(out, "the scores by hand took {} numbers; one pass holds none of them", scores.elements())?;

    for (name, mask) in [("causal", Mask::Causal), ("window of 4", Mask::Window(4))] {
        let seen = q.sdpa(&k, &v, Sdpa { scale, mask, softcap: Some(30.0) }, None)?;
        let first = seen.slice(0, 0..1)?.slice(1, 0..1)?.to_vec::<f32>()?;
        let value = v.slice(0, 0..1)?.slice(1, 0..1)?.to_vec::<f32>()?;
        writeln!(out, "{name}: the first token sees itself alone: {}", first == value)?;
    }

    // More queries than keys: the first ones stand before every key. They give zeros, not NaN.
    let few = (k.slice(1, ..3)?, v.slice(1, ..3)?);
    let masked = q.sdpa(&few.0, &few.1, Sdpa { scale, mask: Mask::Causal, softcap: None }, None)?;
    let blind = masked.slice(1, ..tokens - 3)?.to_vec::<f32>()?;
    writeln!(out, "queries that see nothing give zeros: {}", blind.iter().all(|x| *x == 0.0))?;
    writeln!(out, "{} operations ran on `{}`", device.stats().dispatches, device.info().kind)?;
    Ok(())
}
