//! Matrix products: transposes without copies, batches, half precision and quantised weights.
//!
//! `cargo run -p metallic --example matmul -- --device cpu`

mod common;

use std::io::Write;

use metallic::Tensor;
use metallic::core::quant::quantize;
use metallic::tensor::DType;

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let device = common::open(args)?;
    writeln!(out, "on {}", device.info().name)?;

    let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let gram = a.matmul(&a.t()?)?; // `t` is a view.
    writeln!(out, "a · aᵀ = {:?} {:?}", gram.shape(), gram.to_vec::<f32>()?)?;

    // Weights as a model stores them: [out, in]. Seen transposed, they multiply from the right.
    let (inputs, outputs, tokens) = (256, 96, 33);
    let weights = (&Tensor::randn(&device, DType::F32, [outputs, inputs], 1)? * 0.05).tensor()?;
    let x = Tensor::randn(&device, DType::F32, [tokens, inputs], 2)?;
    let exact = x.matmul(&weights.t()?)?.to_vec::<f32>()?;
    let largest = exact.iter().fold(0f32, |most, y| most.max(y.abs()));
    writeln!(out, "x · Wᵀ = [{tokens}, {outputs}], numbers up to {largest:.2}")?;

    let halves = x.to_dtype(DType::F16)?.matmul(&weights.to_dtype(DType::F16)?.t()?)?;
    writeln!(out, "in F16   it is off by at most {:.4}", largest_difference(&exact, &halves.to_vec()?))?;

    for dtype in [DType::Q8_0, DType::Q4_0] {
        let mut bytes = vec![0; dtype.bytes_for(outputs * inputs).ok_or("rows are not whole blocks")?];
        quantize(dtype, &weights.to_vec::<f32>()?, &mut bytes)?;
        let packed = Tensor::from_bytes(&device, dtype, [outputs, inputs], &bytes)?;
        let found = x.matmul(&packed.t()?)?.to_vec::<f32>()?;
        let off = largest_difference(&exact, &found);
        writeln!(
            out,
            "in {dtype}  it is off by at most {off:.4}, at {} bytes instead of {}",
            bytes.len(),
            outputs * inputs * 4
        )?;
    }

    // One matrix for a whole batch: broadcasting repeats it by a stride of 0.
    let batch = Tensor::randn(&device, DType::F32, [4, tokens, inputs], 3)?;
    writeln!(
        out,
        "a batch: {:?} · {:?} = {:?}",
        batch.shape(),
        weights.t()?.shape(),
        batch.matmul(&weights.t()?)?.shape()
    )?;
    writeln!(out, "{} operations ran on `{}`", device.stats().dispatches, device.info().kind)?;
    Ok(())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()))
}
