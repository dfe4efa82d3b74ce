//! Kernels that are compiled when they are first asked for, each by itself.

use std::{
    num::NonZero,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{Compiler, Source};
use crate::{
    error::{Error, Result},
    library::Kernel,
    runtime::Image,
};

/// A source whose kernels are compiled one by one.
#[derive(Debug)]
pub(crate) struct Parts {
    compiler: Compiler,
    source: Source,
    /// One for each kernel. Whoever wants a kernel that another thread is compiling waits for it.
    slots: Vec<Mutex<Option<Arc<Image>>>>,
}

impl Parts {
    pub(super) fn new(compiler: &Compiler, source: &Source, kernels: usize) -> Self {
        let slots = (0..kernels).map(|_| Mutex::default()).collect();
        Self { compiler: compiler.clone(), source: source.clone(), slots }
    }

    /// The code of the kernel at `index`, compiled if it has not been.
    pub(crate) fn image(&self, index: usize, kernel: &Kernel) -> Result<Arc<Image>> {
        let mut slot = self.slots[index].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = &*slot {
            return Ok(image.clone());
        }
        let image = self.compiler.clone().only([&kernel.name]).at_once(&self.source)?.0;
        if image.kernels() != std::slice::from_ref(kernel) {
            return Err(Error::Changed {
                kernel: kernel.name.clone(),
                library: self.source.name.display().to_string(),
            });
        }
        *slot = Some(image.clone());
        Ok(image)
    }

    /// Compiles the kernels at these indices, as many at a time as there are processors.
    pub(crate) fn prepare(&self, wanted: &[usize], kernels: &[Kernel]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&index) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.image(index, &kernels[index])?;
            }
            Ok(())
        };
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(wanted.len());
        thread::scope(|scope| {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let mine = work();
            others.into_iter().fold(mine, |done, other| {
                done.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// What has been compiled so far.
    pub(crate) fn images(&self) -> Vec<Arc<Image>> {
        let each = self.slots.iter().map(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner).clone());
        each.flatten().collect()
    }
}
