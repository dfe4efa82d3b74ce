//! Measures what a device reaches at best: memory that is read and copied, and matrix products in registers.

use std::time::{Duration, Instant};

use metallic_core::{Peaks, best_rate};

use crate::backend::Shared;
use crate::command::{Binding, Command, CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::Storage;
use crate::kernels::relay::Relay;
use crate::kernels::{Launch, peaks, relay};
use crate::pipelines::HeldKernels;
use crate::pool::Allocation;

/// How much one measurement has to do at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Bytes that are read, where there is room for them.
    bytes: usize,
    /// Rounds of products in the shortest launch.
    rounds: u32,
}

/// Several times what caches hold.
pub(crate) const FULL: Amount = Amount { bytes: 1 << 30, rounds: 1 << 10 };
/// Bytes that are read at least, where there is no room for more.
const LEAST_BYTES: usize = 64 << 20;
const WHAT: &str = "a measurement";

/// Measures a device.
pub(crate) fn measure(shared: &Shared, amount: Amount) -> Result<Peaks, GpuError> {
    let limits = shared.gpu.limits();
    let mut bench = Bench { shared, held: HeldKernels::default() };
    let memory = room(shared, amount.bytes)?;
    let all = memory.region();
    let launch = peaks::read(all.len(), limits);
    let sums = shared.pool.allocate(WHAT, 4 * peaks::simdgroups(&launch, limits), Storage::Private)?;
    let read = bench.rate(all.len() as f64, &|repeats| {
        (vec![launch; repeats as usize], vec![all.read(), sums.region().write()])
    })?;
    let half = all.len() / 2 / peaks::VECTOR * peaks::VECTOR;
    let (from, to) = (all.slice(0, half)?, all.slice(half, half)?);
    let launch = peaks::copy(half, limits);
    let copy = bench.rate(2.0 * half as f64, &|repeats| {
        (vec![launch; repeats as usize], vec![from.read(), to.write()])
    })?;
    drop(memory);
    let (multiply_adds, by) = bench.products(amount.rounds)?;
    Ok(Peaks { read, copy, multiply_adds, by })
}

/// What a kernel takes at best that follows another one, where a threadgroup on each core copies bytes that all of them read, and some that
/// nobody read before.
pub(crate) fn relay(shared: &Shared, what: Relay) -> Result<Duration, GpuError> {
    let limits = shared.gpu.limits();
    let cores = limits.cores().max(1);
    let memory = room(shared, FULL.bytes)?;
    let most = limits.most_threadgroup_memory() as usize;
    let turns = memory.region().len() / (cores as usize).saturating_mul(what.all_own()).max(1);
    if what.memory() > most || turns == 0 {
        let (found, most) = (what.memory() as u64, most as u64);
        let what = "bytes of threadgroup memory for each core";
        return Err(GpuError::Launch { kernel: relay::kernel().function, what, found, most });
    }
    let turns = u32::try_from(turns).unwrap_or(u32::MAX);
    let out = shared.pool.allocate(WHAT, 4 * cores as usize, Storage::Private)?;
    let all = memory.region();
    let mut bench = Bench { shared, held: HeldKernels::default() };
    let rate = bench.rate(1.0, &|repeats| {
        let launches = (0..repeats).map(|turn| relay::launch(cores, what, (turn, turns), limits));
        (launches.collect(), vec![all.read(), all.read(), out.region().write()])
    })?;
    Ok(Duration::from_secs_f64(1.0 / rate))
}

/// So many bytes, or half as many, and so on.
fn room(shared: &Shared, bytes: usize) -> Result<Allocation, GpuError> {
    let mut bytes = bytes.min(shared.gpu.limits().max_buffer);
    loop {
        match shared.pool.allocate(WHAT, bytes, Storage::Private) {
            Err(_) if bytes / 2 >= LEAST_BYTES => bytes /= 2,
            made => return made,
        }
    }
}

/// Launches that do some work so many times, all on the same bindings.
type Launches<'a> = dyn Fn(u32) -> (Vec<Launch>, Vec<Binding>) + 'a;

struct Bench<'a> {
    shared: &'a Shared,
    held: HeldKernels,
}

impl Bench<'_> {
    /// How much is done a second, where launches do `amount` as often as they are told.
    fn rate(&mut self, amount: f64, launches: &Launches<'_>) -> Result<f64, GpuError> {
        let mut made: Option<(u32, CommandList)> = None;
        best_rate(amount, |repeats| {
            // The same list again is what a driver is best at.
            let list = match made.take() {
                Some((known, list)) if known == repeats => list,
                Some(_) | None => self.list(launches, repeats)?,
            };
            let time = self.time(&list)?;
            made = Some((repeats, list));
            Ok(time)
        })
    }

    fn list(&mut self, launches: &Launches<'_>, repeats: u32) -> Result<CommandList, GpuError> {
        let (launches, bindings) = launches(repeats);
        let mut list = CommandList::new();
        for launch in &launches {
            let kernel = self.held.take(&self.shared.pipelines, &launch.kernel)?;
            launch.check(&kernel.limits(self.shared.gpu.limits()))?;
            list.push(Command::Dispatch(Dispatch::new("peaks", kernel.pipeline.id, launch, &bindings)?));
        }
        Ok(list)
    }

    /// What the device took, or where it does not tell, what it took to wait for it.
    fn time(&self, list: &CommandList) -> Result<Duration, GpuError> {
        let start = Instant::now();
        let told = self.shared.gpu.submit(list)?.wait(self.shared.options.timeout)?;
        Ok(told.unwrap_or_else(|| start.elapsed()))
    }

    fn products(&mut self, rounds: u32) -> Result<(f64, &'static str), GpuError> {
        let limits = self.shared.gpu.limits();
        let once = peaks::product(rounds, limits);
        let bytes: Vec<u8> = (0..once.bytes[0].max(once.bytes[1])).map(half_byte).collect();
        let mut memory = Vec::new();
        for (index, len) in once.bytes.into_iter().enumerate() {
            let part = self.shared.pool.allocate(WHAT, len, Storage::Shared)?;
            if index < 2 {
                self.shared.gpu.write(part.region().buffer(), part.region().offset(), &bytes[..len])?;
            }
            memory.push(part);
        }
        let [left, right, out]: [Region; 3] = [0, 1, 2].map(|index: usize| memory[index].region());
        let rate = self.rate(once.launch.work as f64, &|repeats| {
            let launch = peaks::product(rounds.saturating_mul(repeats), limits).launch;
            (vec![launch], vec![left.read(), right.read(), out.write()])
        })?;
        Ok((rate, once.by))
    }
}

/// Bytes of halfs between 0.5 and 1 in size, of both signs, that differ: units that multiply zeros take less power than they do at work.
fn half_byte(index: usize) -> u8 {
    let mixed = (index as u32).wrapping_mul(2_654_435_761) >> 24;
    if index.is_multiple_of(2) { mixed as u8 } else { 0x38 | (mixed as u8 & 0x83) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metallic_core::quant::dequantize;
    use metallic_core::{Backend, DType};
    use metallic_testkit::needed;

    use super::*;
    use crate::fault::{Fault, Faulty};
    use crate::gpu::{Gpu, MatrixUnits};
    use crate::{GpuBackend, GpuOptions, Null, Soft, SoftOptions};

    fn shared(gpu: Arc<dyn Gpu>) -> Shared {
        let pool = crate::Pool::new(gpu.clone(), None);
        let pipelines = crate::Pipelines::bounded(gpu.clone(), 4, 16);
        Shared { gpu, pool, pipelines, options: GpuOptions::default() }
    }

    #[test]
    fn a_device_is_measured_with_the_units_it_has_and_everything_is_given_back() {
        let units = MatrixUnits { cores: 1, threadgroup_memory: 64 << 10 };
        for matrix_units in [None, Some(units)] {
            let options = SoftOptions::default().threads(1).matrix_units(matrix_units);
            let Some(soft) = needed(Soft::new(options)) else { return };
            let gpu = Arc::new(Faulty::new(Arc::new(soft)));
            let shared = shared(gpu.clone());
            let peaks = measure(&shared, Amount { bytes: 1 << 16, rounds: 1 }).unwrap();
            assert!(peaks.read > 0.0 && peaks.copy > 0.0 && peaks.multiply_adds > 0.0, "{peaks:?}");
            assert_eq!(peaks.by.contains("matrix units"), matrix_units.is_some());
            drop(shared);
            let counts = gpu.counts();
            assert_eq!((counts.buffers, counts.submissions, counts.strays), (0, 0, 0));
        }
    }

    #[test]
    fn kernels_follow_each_other_and_what_does_not_fit_is_refused() {
        let Some(soft) = needed(Soft::new(SoftOptions::default().threads(1))) else { return };
        let shared = shared(Arc::new(soft));
        let what = Relay { common: 1 << 10, own: 1 << 10, rounds: 1 };
        assert!(relay(&shared, what).unwrap() > Duration::ZERO);
        let error = relay(&shared, Relay { common: 1 << 20, own: 0, ..what }).unwrap_err().to_string();
        assert!(error.contains("1048576"), "{error}");
    }

    #[test]
    fn less_memory_is_measured_where_there_is_less_and_none_is_an_error() {
        let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
        let shared = shared(gpu.clone());
        gpu.fail(Fault::Allocate, 1);
        gpu.fail(Fault::Allocate, 2);
        assert_eq!(room(&shared, 4 * LEAST_BYTES).unwrap().region().len(), LEAST_BYTES);
        gpu.fail_always(Fault::Allocate);
        assert!(matches!(measure(&shared, FULL), Err(GpuError::OutOfMemory { .. })));
    }

    #[test]
    fn a_share_of_what_a_processor_pretends_means_nothing() {
        let backend = GpuBackend::new(Arc::new(Null::new()), GpuOptions::default());
        assert_eq!(backend.peaks(), Ok(None));
    }

    #[test]
    fn what_units_multiply_is_half_to_one_and_not_all_the_same() {
        let bytes: Vec<u8> = (0..128).map(half_byte).collect();
        let mut halfs = vec![0.0; 64];
        dequantize(DType::F16, &bytes, &mut halfs).unwrap();
        assert!(halfs.iter().all(|x| (0.5..1.0).contains(&x.abs())), "{halfs:?}");
        assert!(halfs.iter().any(|x| *x < 0.0) && halfs.iter().any(|x| *x > 0.0));
    }
}
