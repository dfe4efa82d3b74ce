//! What a device is, and the proof that it does the work.
//!
//! `cargo run -p metallic --example device_info -- --device cpu`

mod common;

use std::io::Write;
use std::time::Instant;

use metallic::Tensor;
use metallic::tensor::DType;

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let device = common::open(args)?;
    let info = device.info();
    writeln!(out, "kind    {}", info.kind)?;
    writeln!(out, "name    {}", info.name)?;
    writeln!(out, "units   {}", info.units)?;
    match info.memory_bytes.or_else(metallic::device::available_memory) {
        Some(bytes) => writeln!(out, "memory  {} MiB", bytes >> 20)?,
        None => writeln!(out, "memory  not known")?,
    }

    let n = 128;
    let a = Tensor::rand(&device, DType::F32, [n, n], 1)?;
    let before = device.stats();
    let start = Instant::now();
    let product = a.matmul(&a.t()?)?.to_vec::<f32>()?;
    let seconds = start.elapsed().as_secs_f64();
    let after = device.stats();
    writeln!(out, "a {n}×{n} product: {} dispatch(es)", after.dispatches - before.dispatches)?;
    writeln!(
        out,
        "  {} bytes read, {} written",
        after.bytes_read - before.bytes_read,
        after.bytes_written - before.bytes_written
    )?;
    writeln!(
        out,
        "  {:.2} GFLOP/s, one small product and its way back",
        2.0 * (n * n * n) as f64 / seconds / 1e9
    )?;
    let sum: f32 = product.iter().sum();
    writeln!(out, "  mean {:.2}, near {} as random numbers of 0 to 1 give", sum / (n * n) as f32, n / 4)?;
    Ok(())
}
