//! Reading a mapped file that became shorter: the system sends SIGBUS, which would end the process.
//!
//! A handler looks whether the address lies in a mapping that was [watched](watch). If so, it notes where the file ends now and
//! puts zeros in place of everything from there on, so that whoever was reading goes on; [`Watched::lost`] then tells. Every other
//! SIGBUS goes to whoever was there before. A program that installs a handler of its own later takes this one's place, and
//! should call it for what it does not know.
//!
//! Nothing here locks or allocates inside the handler: places of mappings are a list that only grows, read by atomics.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::{self, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// A place for a mapping in the list; used again after the mapping is gone, never freed.
struct Place {
    taken: AtomicBool,
    start: AtomicUsize,
    /// 0: nothing is watched here.
    end: AtomicUsize,
    /// Offset of the first byte that was not there; `usize::MAX`: none.
    lost: AtomicUsize,
    next: Option<&'static Place>,
}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: a place is published complete, is never freed, and changes by atomics only.
    let first = unsafe { PLACES.load(SeqCst).as_ref() };
    std::iter::successors(first, |place| place.next)
}

/// A mapping that may lose its end without ending the process.
pub(crate) struct Watched(&'static Place);

/// Watches the mapping of `len` bytes from `start`, until what is returned is dropped. `None` where the system has no such
/// handlers to offer.
pub(crate) fn watch(start: *const u8, len: usize) -> Option<Watched> {
    installed()?;
    let free = |p: &&Place| !p.taken.swap(true, SeqCst);
    let place = places().find(free).unwrap_or_else(add_place);
    place.lost.store(usize::MAX, SeqCst);
    place.start.store(start.addr(), SeqCst);
    // Last: from here on the handler takes it for a mapping.
    place.end.store(start.addr().saturating_add(len), SeqCst);
    Some(Watched(place))
}

fn add_place() -> &'static Place {
    let place = Box::leak(Box::new(Place {
        taken: AtomicBool::new(true),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicUsize::new(usize::MAX),
        next: None,
    }));
    loop {
        let head = PLACES.load(SeqCst);
        // SAFETY: as in `places`.
        place.next = unsafe { head.as_ref() };
        // Ours alone until it is published.
        if PLACES.compare_exchange(head, &raw mut *place, SeqCst, SeqCst).is_ok() {
            return place;
        }
    }
}

impl Watched {
    /// Offset of the first byte that was read and was not there.
    pub(crate) fn lost(&self) -> Option<usize> {
        Some(self.0.lost.load(SeqCst)).filter(|at| *at != usize::MAX)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.end.store(0, SeqCst);
        self.0.taken.store(false, SeqCst);
    }
}

/// Who had the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn installed() -> Option<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let done = *INSTALLED.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: asks for the present action and writes it to `before`, which is read only where that went well.
        let before = unsafe {
            if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
                return false;
            }
            before.assume_init()
        };
        // Before the handler is there to read it.
        let before = BEFORE.get_or_init(|| before);
        let mut ours = *before;
        ours.sa_sigaction = handle as *const () as usize;
        // On the thread's spare stack: the same signal may tell of a stack that ran out.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `handle` has the form that `SA_SIGINFO` asks for, and does only what a handler may.
        unsafe {
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, null_mut()) == 0
        }
    });
    done.then_some(())
}

/// The handler. Only atomics and system calls.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `info` is what the system gave; the error number of the interrupted code is this thread's own, and put
    // back before that code goes on.
    unsafe {
        let errno = errno();
        let saved = *errno;
        // Above 0: the processor's own, not one that someone sent.
        let ours = (*info).si_code > 0 && replace_lost((*info).si_addr().addr());
        *errno = saved;
        if !ours {
            pass_on(signal, info, context);
        }
    }
}

/// Puts zeros in place of what the mapping around `address` has lost; `false` where there is no such mapping.
fn replace_lost(address: usize) -> bool {
    let around = |p: &&Place| (p.start.load(SeqCst)..p.end.load(SeqCst)).contains(&address);
    let Some(place) = places().find(around) else { return false };
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let from = address & !(page - 1);
    let len = place.end.load(SeqCst).next_multiple_of(page) - from;
    // Before the zeros are there: who sees them can know.
    place.lost.fetch_min(from - place.start.load(SeqCst), SeqCst);
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANON;
    let place: *mut libc::c_void = ptr::with_exposed_provenance_mut(from);
    // SAFETY: whole pages inside a mapping that is ours until it is no longer watched, from the one that cannot be read to
    // the last; they become zeros that can be read, and are unmapped with the rest.
    let mapped = unsafe { libc::mmap(place, len, libc::PROT_READ, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Leaves a signal to whoever had it before.
///
/// # Safety
/// From the handler, with what it was given.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().filter(|b| ![libc::SIG_DFL, libc::SIG_IGN].contains(&b.sa_sigaction));
    // SAFETY: a handler that was installed is called as its flags say it wants to be. Where there was none, the signal's
    // own action is put back: a fault happens again when this returns, and one that was sent is sent again.
    unsafe {
        match before {
            Some(b) if b.sa_flags & libc::SA_SIGINFO != 0 => {
                type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                std::mem::transmute::<usize, Full>(b.sa_sigaction)(signal, info, context);
            }
            Some(b) => {
                std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(b.sa_sigaction)(signal);
            }
            None => {
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
    }
}

/// Where this thread keeps the number of its last error.
unsafe fn errno() -> *mut libc::c_int {
    // SAFETY: always there.
    unsafe {
        #[cfg(target_os = "macos")]
        return libc::__error();
        #[cfg(not(target_os = "macos"))]
        return libc::__errno_location();
    }
}
