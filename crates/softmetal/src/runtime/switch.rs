//! From one stack to another: all that a fiber is.
//!
//! A suspended context is its stack pointer. On top of the stack lies the address to go on at; below it what the code there
//! wants back. Everything else the compiler is told to keep out of registers, so a switch is a dozen instructions.

use std::{arch::asm, cell::Cell};

/// Bytes between a suspended context's stack pointer and the one it goes on with.
#[cfg(target_arch = "x86_64")]
const ADDRESS: usize = 8;
#[cfg(target_arch = "aarch64")]
const ADDRESS: usize = 16;

/// A suspended piece of code.
#[derive(Debug, Default)]
pub(super) struct Context(Cell<usize>);

impl Context {
    /// Makes it the beginning of `entry`, on the stack that ends at `top`.
    ///
    /// # Safety
    /// The 64 bytes below `top` can be written, and nothing that is still in use lies below `top`.
    pub(super) unsafe fn begin(&self, top: usize, entry: extern "C" fn() -> !) {
        // A function begins with its return address on the stack (x86-64), 16-byte aligned but for that.
        let start = (top & !15) - 16 - ADDRESS % 16;
        // SAFETY: within the 64 bytes, as the caller promises.
        unsafe {
            (start as *mut usize).write(0);
            ((start - ADDRESS) as *mut usize).write(entry as usize);
        }
        self.0.set(start - ADDRESS);
    }

    /// An address in the part of its stack that it needs first.
    #[inline]
    pub(super) fn stack_pointer(&self) -> usize {
        self.0.get()
    }

    /// Where it goes on: the instruction and the stack pointer.
    ///
    /// # Safety
    /// It is suspended.
    pub(super) unsafe fn resumes_at(&self) -> (usize, usize) {
        // SAFETY: a suspended context has the address on top of its stack.
        unsafe { (*(self.0.get() as *const usize), self.0.get() + ADDRESS) }
    }

    /// Suspends the running code here and lets another go on; comes back when somebody switches to this context. To itself it
    /// comes back at once.
    ///
    /// # Safety
    /// `to` is suspended (`begin` or `switch`) or this one, its stack is alive, and it was suspended on this host thread or has
    /// not begun.
    #[inline(always)]
    pub(super) unsafe fn switch(&self, to: &Self) {
        // SAFETY: the stack is left as it was found; what it clobbers is said. The caller promises the rest.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "lea rax, [rip + 2f]",
                "push rbx",
                "push rbp",
                "push rax",
                "mov [rdi], rsp",
                "mov rsp, [rsi]",
                "pop rax",
                "jmp rax",
                "2:",
                "pop rbp",
                "pop rbx",
                inout("rdi") self.0.as_ptr() => _,
                inout("rsi") to.0.as_ptr() => _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                clobber_abi("sysv64"),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "adr x9, 2f",
                "stp x29, x19, [sp, #-16]!",
                "str x9, [sp, #-16]!",
                "mov x9, sp",
                "str x9, [x0]",
                "ldr x9, [x1]",
                "mov sp, x9",
                "ldr x9, [sp], #16",
                "br x9",
                "2:",
                "ldp x29, x19, [sp], #16",
                inout("x0") self.0.as_ptr() => _,
                inout("x1") to.0.as_ptr() => _,
                out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
                out("x25") _, out("x26") _, out("x27") _, out("x28") _,
                clobber_abi("C"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, ptr};

    use super::{super::memory::FiberStack, Context};

    thread_local! {
        static TEST: Cell<*const Test> = const { Cell::new(ptr::null()) };
    }

    #[derive(Default)]
    struct Test {
        host: Context,
        fibers: [Context; 2],
        seen: Cell<Vec<(usize, f64)>>,
        next: Cell<usize>,
    }

    /// Passes the turn to the other fiber ten times, then to the host.
    extern "C" fn body() -> ! {
        // SAFETY: the test outlives its fibers.
        let test = unsafe { &*TEST.get() };
        let me = test.next.replace(1 - test.next.get());
        let mut sum = me as f64;
        for round in 0..10 {
            sum += round as f64 * (me + 1) as f64;
            let mut seen = test.seen.take();
            seen.push((me, sum));
            test.seen.set(seen);
            // SAFETY: the other is suspended or has not begun.
            unsafe { test.fibers[me].switch(&test.fibers[1 - me]) };
        }
        // SAFETY: the host is suspended.
        unsafe { test.fibers[me].switch(&test.host) };
        unreachable!("nobody comes back");
    }

    #[test]
    fn fibers_hand_over_to_each_other_and_keep_their_own_state() {
        let test = Test::default();
        TEST.set(&raw const test);
        let stacks = [1, 2].map(|nth| FiberStack::new(64 << 10, nth).unwrap());
        for (fiber, stack) in test.fibers.iter().zip(&stacks) {
            // SAFETY: a fresh stack.
            unsafe { fiber.begin(stack.top(), body) };
        }
        // SAFETY: both have not begun.
        unsafe { test.host.switch(&test.fibers[0]) };
        let seen = test.seen.take();
        assert_eq!(seen.len(), 20);
        for (n, (who, sum)) in seen.into_iter().enumerate() {
            let round = (n / 2 * (n / 2 + 1) / 2) as f64;
            assert_eq!((who, sum), (n % 2, who as f64 + round * (who + 1) as f64));
        }
    }
}
