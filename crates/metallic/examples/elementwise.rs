//! Arithmetic on tensors: operators, broadcasting, views, and what an error looks like.
//!
//! `cargo run -p metallic --example elementwise -- --device cpu`

mod common;

use std::io::Write;

use metallic::Tensor;
use metallic::tensor::{DType, Unary};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let device = common::open(args)?;
    writeln!(out, "on {}", device.info().name)?;

    let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let row = Tensor::from_slice(&device, &[10.0f32, 20.0, 30.0], [3])?;
    writeln!(out, "x           = {:?} {:?}", x.shape(), x.to_vec::<f32>()?)?;

    // An operator keeps the first error; `tensor()` hands out the result.
    let y = ((&x + &row) * 0.5 - 1.0).tensor()?;
    writeln!(out, "(x+row)/2-1 = {:?}", y.to_vec::<f32>()?)?;
    writeln!(out, "1 / x       = {:?}", (1.0 / &x).tensor()?.to_vec::<f32>()?)?;

    // A view has an offset and strides; nothing is copied until an operation reads it.
    let corner = x.slice(1, 1..)?.transpose(0, 1)?;
    writeln!(out, "x[:, 1:]ᵀ   = {:?}, seen as {}", corner.to_vec::<f32>()?, corner.view())?;

    let gate = Tensor::randn(&device, DType::F16, [1, 1025], 7)?;
    let swiglu = gate.gated(Unary::Silu, &gate)?;
    writeln!(
        out,
        "silu(g) * g = {} of {}, one pass over {} numbers",
        swiglu.dtype(),
        gate.dtype(),
        gate.elements()
    )?;

    let error = (&x + &gate).tensor().err().ok_or("a sum of such shapes should have been refused")?;
    writeln!(out, "x + gate    = error: {error}")?;
    writeln!(out, "{} operations ran on `{}`", device.stats().dispatches, device.info().kind)?;
    Ok(())
}
