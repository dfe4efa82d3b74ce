//! Crashes and endless loops inside kernels: signals that end the fiber instead of the process.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ops::Range,
    ptr,
    sync::{
        Arc, Condvar, Mutex, Once, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering, compiler_fence},
    },
    time::{Duration, Instant},
};

use super::{crew::lock, worker::Worker};

/// What a kernel was doing when it was ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trap {
    pub(crate) cause: Cause,
    /// The instruction.
    pub(crate) pc: usize,
}

/// Why a fiber was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Access to an address that is not mapped.
    Memory(usize),
    StackOverflow,
    Arithmetic,
    Instruction,
    Timeout,
}

thread_local! {
    /// Set only while code of the kernel itself runs: elsewhere locks and borrows may be held.
    static IN_KERNEL: Cell<bool> = const { Cell::new(false) };
    static READY: Cell<bool> = const { Cell::new(false) };
    static STOP: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
    /// Set by the watchdog before it sends this host thread its signal.
    static ASKED: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// Says whether kernel code is about to run on this host thread.
#[inline]
pub(crate) fn in_kernel(yes: bool) {
    // The handler sees what this thread has written, in the order the compiler chose.
    compiler_fence(Ordering::SeqCst);
    IN_KERNEL.set(yes);
    compiler_fence(Ordering::SeqCst);
}

const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
/// Ignored by default and used by few: it asks a host thread to look whether its time is over.
const PREEMPT: c_int = libc::SIGURG;

static PREVIOUS: OnceLock<Vec<(c_int, libc::sigaction)>> = OnceLock::new();

/// Installs the handlers, once per process, and gives this host thread a signal stack if it has none.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    if READY.replace(true) {
        return;
    }
    ONCE.call_once(|| {
        let mut previous = Vec::new();
        for signal in FAULTS.into_iter().chain([PREEMPT]) {
            // SAFETY: the structures are plain data; the handler only touches thread-locals without destructors and the
            // interrupted context.
            unsafe {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                let mut old = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                action.sa_sigaction = handle as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, &raw mut old);
                previous.push((signal, old));
            }
        }
        let _ = PREVIOUS.set(previous);
    });
    signal_stack();
}

/// A stack overflow can only be handled on another stack.
fn signal_stack() {
    const SIZE: usize = 64 << 10;
    // SAFETY: reads the current setting; if there is none, a leaked block of `SIZE` bytes becomes it for good.
    unsafe {
        let mut now = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
        libc::sigaltstack(ptr::null(), &raw mut now);
        if now.ss_flags & libc::SS_DISABLE != 0 {
            let block = Box::leak(vec![0_u8; SIZE].into_boxed_slice());
            let stack = libc::stack_t { ss_sp: block.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIZE };
            libc::sigaltstack(&raw const stack, ptr::null_mut());
        }
    }
}

unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid record and context; while `IN_KERNEL` is set, a fiber of the current worker runs.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        // What somebody sent says nothing about the code that it interrupts.
        let ours = if signal == PREEMPT { asked(&*info) } else { !sent(&*info) };
        if !ours {
            return pass_on(signal, info, context);
        }
        if IN_KERNEL.get() {
            let stop = STOP.get();
            if signal == PREEMPT && (stop.is_null() || !(*stop).load(Ordering::Relaxed)) {
                return;
            }
            let [pc, sp] = registers(context);
            let trap = |guard| Trap { cause: cause_of(signal, info, &guard), pc: *pc };
            if let Some(Some(scheduler)) = Worker::with(|w| w.interrupted(*sp, trap)) {
                IN_KERNEL.set(false);
                (*pc, *sp) = scheduler;
                return;
            }
        }
        if signal != PREEMPT {
            pass_on(signal, info, context);
        }
    }
}

/// Sent by a process, not caused by an instruction.
fn sent(info: &libc::siginfo_t) -> bool {
    info.si_code <= 0
}

/// Whether it is the watchdog that sent this signal, which it does to one thread at a time. Two that wait for the same thread
/// arrive as one: then the watchdog asks again, and the other has been heard.
fn asked(info: &libc::siginfo_t) -> bool {
    let asked = ASKED.get();
    // SAFETY: null, or the flag of this thread's `Watch`, which is alive while it is set.
    sent(info) && !asked.is_null() && unsafe { &*asked }.swap(false, Ordering::AcqRel)
}

/// # Safety
/// `info` is the record of `signal`.
unsafe fn cause_of(signal: c_int, info: *mut libc::siginfo_t, guard: &Range<usize>) -> Cause {
    // SAFETY: memory faults carry an address.
    let address = unsafe { (*info).si_addr() } as usize;
    match signal {
        PREEMPT => Cause::Timeout,
        libc::SIGFPE => Cause::Arithmetic,
        libc::SIGILL | libc::SIGTRAP => Cause::Instruction,
        _ if guard.contains(&address) => Cause::StackOverflow,
        _ => Cause::Memory(address),
    }
}

/// Not ours: the handler that was there before decides.
///
/// # Safety
/// Called from the handler of `signal` with its arguments.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: &mut libc::ucontext_t) {
    let old = PREVIOUS.get().and_then(|all| all.iter().find(|(s, _)| *s == signal));
    match old {
        Some((_, old)) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            if old.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: registered with SA_SIGINFO, so it has this type.
                unsafe {
                    let f: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(old.sa_sigaction);
                    f(signal, info, ptr::from_mut(context).cast());
                }
            } else {
                // SAFETY: registered without SA_SIGINFO, so it has this type.
                unsafe {
                    let f: extern "C" fn(c_int) = std::mem::transmute(old.sa_sigaction);
                    f(signal);
                }
            }
        }
        Some((_, old)) if old.sa_sigaction == libc::SIG_IGN && may_be_ignored(signal, info) => {}
        None | Some(_) if signal == PREEMPT => {} // which is what its default is
        // SAFETY: back to the default. A faulting instruction runs again and ends the process as it would have; one that has
        // been passed, as a breakpoint has, and what was sent are raised once more, to take effect when the handler returns.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if signal == libc::SIGTRAP || sent(&*info) {
                libc::raise(signal);
            }
        },
    }
}

/// The system lets a process ignore what was sent to it, and not what its own instructions cause.
fn may_be_ignored(signal: c_int, info: *const libc::siginfo_t) -> bool {
    // SAFETY: the record that the system has passed.
    signal == PREEMPT || sent(unsafe { &*info })
}

/// Program counter and stack pointer of the interrupted code, which the system takes back from there.
fn registers(context: &mut libc::ucontext_t) -> [*mut usize; 2] {
    #[cfg(target_os = "linux")]
    let r = &mut context.uc_mcontext;
    // SAFETY: the system passes the registers of the interrupted code.
    #[cfg(target_os = "macos")]
    let r = unsafe { &mut (*context.uc_mcontext).__ss };
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let [pc, sp] = [libc::REG_RIP, libc::REG_RSP].map(|register| &raw mut r.gregs[register as usize]);
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    let (pc, sp) = (&raw mut r.pc, &raw mut r.sp);
    #[cfg(all(target_os = "macos", target_arch = "x86_64"))]
    let (pc, sp) = (&raw mut r.__rip, &raw mut r.__rsp);
    #[cfg(all(target_os = "macos", target_arch = "aarch64"))]
    let (pc, sp) = (&raw mut r.__pc, &raw mut r.__sp);
    [pc.cast(), sp.cast()]
}

/// While it lives, the watchdog stops this host thread's kernels at the deadline.
pub(crate) struct Watch<'a> {
    key: usize,
    stop: &'a AtomicBool,
    /// Alive until the entry is gone, and with it the last signal.
    _asked: Arc<AtomicBool>,
}

struct Watched {
    key: usize,
    deadline: Instant,
    thread: libc::pthread_t,
    stop: *const AtomicBool,
    /// Tells the thread who has sent its next signal.
    asked: Arc<AtomicBool>,
}

// SAFETY: `stop` outlives the entry, which `Watch` removes before its borrow ends; the flags are atomic.
unsafe impl Send for Watched {}

#[derive(Default)]
struct Watchdog {
    state: Mutex<Watchlist>,
    changed: Condvar,
}

#[derive(Default)]
struct Watchlist {
    last_key: usize,
    /// When the watchdog looks next; unset until it first sleeps.
    wakes: Option<Instant>,
    entries: Vec<Watched>,
}

/// How often a host thread is asked again, should it have been outside kernel code the first time.
const NAG: Duration = Duration::from_millis(5);

fn watchdog() -> &'static Watchdog {
    static WATCHDOG: OnceLock<&'static Watchdog> = OnceLock::new();
    WATCHDOG.get_or_init(|| {
        let dog: &'static Watchdog = Box::leak(Box::default());
        // Without the thread, kernels that loop for ever are not stopped; nothing else changes.
        let _ = std::thread::Builder::new().name("softmetal watchdog".into()).spawn(move || dog.watch());
        dog
    })
}

impl Watchdog {
    fn watch(&self) {
        let mut list = lock(&self.state);
        loop {
            let now = Instant::now();
            let mut wait = Duration::from_secs(3600);
            for e in &list.entries {
                if e.deadline <= now {
                    // SAFETY: the entry is present, so its thread and flag are alive (see `Watch::drop`).
                    unsafe {
                        (*e.stop).store(true, Ordering::Relaxed);
                        e.asked.store(true, Ordering::Release);
                        libc::pthread_kill(e.thread, PREEMPT);
                    }
                    wait = wait.min(NAG);
                } else {
                    wait = wait.min(e.deadline - now);
                }
            }
            list.wakes = Some(now + wait);
            list = self.changed.wait_timeout(list, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<'a> Watch<'a> {
    /// Watches the calling host thread; at the deadline `stop` is set.
    pub(crate) fn new(deadline: Instant, stop: &'a AtomicBool) -> Self {
        let dog = watchdog();
        let mut list = lock(&dog.state);
        list.last_key += 1;
        let key = list.last_key;
        let sooner = list.wakes.is_none_or(|at| deadline < at);
        // SAFETY: names the calling thread.
        let thread = unsafe { libc::pthread_self() };
        let asked = Arc::new(AtomicBool::new(false));
        STOP.set(stop);
        ASKED.set(Arc::as_ptr(&asked));
        list.entries.push(Watched { key, deadline, thread, stop, asked: asked.clone() });
        drop(list);
        if sooner {
            dog.changed.notify_one();
        }
        Self { key, stop, _asked: asked }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // First the entry: a signal on its way arrives while the lock is held, and still finds what it refers to.
        lock(&watchdog().state).entries.retain(|e| e.key != self.key);
        STOP.set(ptr::null());
        ASKED.set(ptr::null());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt,
        process::{Command, ExitStatus},
        sync::atomic::AtomicUsize,
        thread,
    };

    use super::*;

    static HEARD: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn hear(_: c_int) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    fn raise(signal: c_int) {
        // SAFETY: asks the system to send this thread a signal.
        unsafe { libc::raise(signal) };
    }

    /// Runs `body` in a process of its own, since handlers are a process's, by running this test again there: how it ended.
    fn alone(test: &str, body: fn()) -> ExitStatus {
        const INSIDE: &str = "SOFTMETAL_TEST_ALONE";
        if env::var_os(INSIDE).is_some() {
            body();
            std::process::exit(0);
        }
        let name = format!("runtime::trap::tests::{test}");
        let mut again = Command::new(env::current_exe().unwrap());
        let output = again.args(["--exact", &name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("running 1 test"), "no test {name}: {said}");
        output.status
    }

    #[test]
    fn a_handler_that_was_there_before_hears_its_signal_and_not_the_watchdogs() {
        let status = alone("a_handler_that_was_there_before_hears_its_signal_and_not_the_watchdogs", || {
            // SAFETY: the handler counts, and that is all.
            unsafe { libc::signal(PREEMPT, hear as *const () as usize) };
            install();
            raise(PREEMPT);
            assert_eq!(HEARD.load(Ordering::Relaxed), 1);
            let stop = AtomicBool::new(false);
            let watch = Watch::new(Instant::now(), &stop);
            while !watch.stopped() {
                thread::yield_now();
            }
            thread::sleep(8 * NAG);
            assert_eq!(HEARD.load(Ordering::Relaxed), 1, "what the watchdog sends is for this crate alone");
            drop(watch);
            raise(PREEMPT);
            assert_eq!(HEARD.load(Ordering::Relaxed), 2);
        });
        assert_eq!(status.code(), Some(0), "{status}");
    }

    #[test]
    fn a_signal_nobody_waits_for_changes_nothing() {
        let status = alone("a_signal_nobody_waits_for_changes_nothing", || {
            install();
            raise(PREEMPT);
            // SAFETY: reads the current setting.
            let now = unsafe {
                let mut now = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                libc::sigaction(PREEMPT, ptr::null(), &raw mut now);
                now.sa_sigaction
            };
            assert_eq!(now, handle as *const () as usize);
        });
        assert_eq!(status.code(), Some(0), "{status}");
    }

    #[test]
    fn a_breakpoint_of_the_host_ends_it_as_it_would_have() {
        let status = alone("a_breakpoint_of_the_host_ends_it_as_it_would_have", || {
            install();
            // SAFETY: a breakpoint, which ends the process where no debugger is.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                std::arch::asm!("int3");
                #[cfg(target_arch = "aarch64")]
                std::arch::asm!("brk #0");
            }
        });
        assert_eq!(status.signal(), Some(libc::SIGTRAP), "{status}");
    }
}
