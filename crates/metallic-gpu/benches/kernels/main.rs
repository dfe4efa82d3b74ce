//! Kernels one by one, on one device: time, GB/s or TFLOP/s, and the share of what the device reaches at best.
//!
//! `cargo bench -p metallic-gpu --features soft [-- FILTER…]`; lines whose name has every filter are measured. `METALLIC_BENCH_DEVICE`:
//!
//! - `soft` (default), and `soft-units` with the kernels for matrix units: small shapes, in a minute or two. What a change does to the number
//!   of instructions, not how fast a GPU is.
//! - `cuda`, `cuda:1`, … (`--features cuda`) and `metal`: the shapes of Qwen2.5-7B.
//! - `ptx:FOLDER` (`--features cuda`): measures nothing, and puts the kernels that `cuda` needs into a folder, for a machine without a
//!   compiler (`METALLIC_PTX=FOLDER`).
//!
//! Lines `provider/…` show who else could do the same: a Mac's GPU tells times, what stands for it on Linux counts (`cargo xtask
//! metal-on-linux cargo bench -p metallic-gpu -- provider` with `METALLIC_BENCH_DEVICE=metal`).
//!
//! Results are compared with the CPU's before they are timed. A kernel's time is its share of a step: the step is timed as a whole, and
//! shares are those of a step in which each kernel is timed. Bytes and multiply-adds are those that plans count.

mod device;
mod graphs;
mod providers;
mod relays;
mod runner;
mod submissions;
mod tensors;

use metallic_core::{Backend, OpCost, Peaks};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_gpu::Providers;

use device::Device;
use graphs::Line;
use runner::{Runner, difference};

/// Results differ from the CPU's, which computes in 32 bits here, by no more than this part of the largest.
const TOLERANCE: f32 = 0.01;
/// Multiply-adds up to which a processor is asked for the same.
const COMPARED: u64 = 20_000_000_000;

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| filters.iter().all(|filter| name.contains(filter.as_str()));
    let name = std::env::var("METALLIC_BENCH_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    let device = match Device::open(&name) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("NOT MEASURED: {name}: {error}");
            std::process::exit(1);
        }
    };
    let cpu = Cpu::new(CpuOptions::default().exact(true)).expect("threads");
    let mut table = Table::new(&device);
    for line in graphs::lines(&device.sizes).into_iter().filter(|line| wanted(&line.name)) {
        measure(&device, &cpu, &line, &Providers::new(), &mut table);
    }
    let plain = Providers::new();
    plain.set("sdpa", "plain").expect("a provider");
    for line in graphs::plain_attention(&device.sizes).into_iter().filter(|line| wanted(&line.name)) {
        measure(&device, &cpu, &line, &plain, &mut table);
    }
    if device.measures {
        tensors::operations(&device, &cpu, &wanted);
        submissions::strategies(&device, &wanted);
        providers::compare(&device, &wanted);
        relays::relays(&device, &wanted);
    }
    if let Err(error) = device.finish() {
        eprintln!("{name}: {error}");
        std::process::exit(1);
    }
}

/// Lines as they are printed.
struct Table {
    peaks: Option<Peaks>,
}

impl Table {
    fn new(device: &Device) -> Table {
        let backend = device.backend(&Providers::new(), false);
        let peaks = if device.measures { backend.peaks().expect("a measurement") } else { None };
        if let Some(peaks) = peaks {
            let (read, copy, flops) = (peaks.read / 1e9, peaks.copy / 1e9, 2.0 * peaks.multiply_adds / 1e12);
            println!("at best {read:.1} GB/s read, {copy:.1} GB/s copied, {flops:.2} TFLOP/s ({})", peaks.by);
        }
        let (us, memory, products) = ("µs", "OF MEMORY", "OF MATRIX");
        println!(
            "{:36} {:24} {us:>10} {:>9} {memory:>9} {:>9} {products:>9} {:>8}",
            "LINE", "KERNEL", "GB/s", "TFLOP/s", "OFF BY"
        );
        Table { peaks }
    }

    /// One kernel of a line; `scale` is what its time is to be multiplied with.
    fn print(&mut self, line: &Line, cost: &OpCost, scale: f64, off: Option<f32>) {
        let seconds = cost.time.as_secs_f64() * scale;
        let (bytes, flops) = (cost.bytes as f64 / seconds, 2.0 * cost.multiply_adds as f64 / seconds);
        let share = |rate: f64, peak: Option<f64>| {
            peak.map_or("-".to_owned(), |peak| format!("{:.1}%", 100.0 * rate / peak))
        };
        let of_memory = share(bytes, self.peaks.map(|peaks| peaks.read));
        let (flops, of_products) = if cost.multiply_adds == 0 {
            ("-".to_owned(), "-".to_owned())
        } else {
            (format!("{:.3}", flops / 1e12), share(flops, self.peaks.map(|peaks| 2.0 * peaks.multiply_adds)))
        };
        let us = seconds * 1e6 / cost.times.max(1) as f64;
        let off = off.map_or("-".to_owned(), |off| format!("{off:.0e}"));
        println!(
            "{:36} {:24} {us:>10.2} {:>9.1} {of_memory:>9} {flops:>9} {of_products:>9} {off:>8}",
            line.name,
            cost.kernel,
            bytes / 1e9
        );
    }
}

fn measure(device: &Device, cpu: &Cpu, line: &Line, providers: &Providers, table: &mut Table) {
    let graph = (line.build)(line.copies);
    let mut timed = Runner::new(&device.backend(providers, true), line, &graph);
    let first = timed.step();
    if !device.measures {
        println!("{}", line.name);
        return;
    }
    let off = (first.multiply_adds <= COMPARED).then(|| {
        let found = timed.program.output(0).to_vec();
        let mut runner = Runner::new(cpu, line, &(line.build)(1));
        runner.step();
        let off = difference(runner.program.output(0), &found);
        assert!(off < TOLERANCE, "{}: off by {off}", line.name);
        off
    });
    let costs = timed.best_costs();
    drop(timed);
    let whole = Runner::new(&device.backend(providers, false), line, &graph).best_step();
    let parts: f64 = costs.iter().map(|cost| cost.time.as_secs_f64()).sum();
    let scale = whole.as_secs_f64() / parts.max(1e-12);
    for cost in costs.iter().filter(|cost| line.ops.contains(&cost.op)) {
        table.print(line, cost, scale, off);
    }
}
