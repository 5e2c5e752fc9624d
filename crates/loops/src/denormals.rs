//! Flush-to-zero for kernel threads: denormal floats count as zero, as in TensorFlow. A processor takes up to a hundred times
//! as long over a denormal, and a value that close to zero is seldom worth the time.
//!
//! The setting belongs to a thread, not to a kernel. Threads that compute for devices have it, threads that run a step inline
//! have it for that time, and the other threads of the process never do. An op that only moves a number leaves its bits
//! unchanged. Reading and writing numbers as text works on their bits, on any thread.

#![allow(unsafe_code, reason = "the processor's control register is read and written")]

use std::sync::Once;

use register::{FLUSHES, control, set_control};

/// Sets flush-to-zero on the calling thread, which those that join its kernels follow, and on the pool of the backends: denormal
/// operands count as zero, and a denormal result becomes zero.
#[inline]
pub fn flush() {
    on_this_thread();
    static POOL: Once = Once::new();
    POOL.call_once(on_the_pool);
}

/// How a thread treats denormals.
#[derive(Clone, Copy)]
pub(crate) struct Denormals(u64);

impl Denormals {
    pub fn of_this_thread() -> Denormals {
        Denormals(control() & FLUSHES)
    }

    /// Treats them in this way on the calling thread.
    pub fn set(self) {
        set_control(control() & !FLUSHES | self.0);
    }
}

/// Flush-to-zero on the calling thread for the lifetime of the value.
pub struct Flushed {
    before: u64,
}

impl Flushed {
    #[inline]
    pub fn begin() -> Flushed {
        let before = control();
        set_control(before | FLUSHES);
        Flushed { before }
    }
}

impl Drop for Flushed {
    fn drop(&mut self) {
        set_control(self.before);
    }
}

fn on_this_thread() {
    set_control(control() | FLUSHES);
}

/// Sets it on the threads of rayon's global pool, whichever code started that pool. Other pools are started by the thread
/// that computes, and a thread inherits the settings of the thread that starts it.
fn on_the_pool() {
    rayon::broadcast(|_| on_this_thread());
}

/// The control register of the processor.
///
/// Rust assumes that these settings never change, and evaluates constants accordingly. The only possible effect is a denormal
/// instead of the zero that the processor would have returned.
#[cfg(target_arch = "x86_64")]
mod register {
    /// The bits of MXCSR: results that are denormal become zero, and operands that are count as zero.
    pub const FLUSHES: u64 = 1 << 15 | 1 << 6;

    #[inline]
    pub fn control() -> u64 {
        let mut control = 0u32;
        // SAFETY: every x86-64 processor has the register; its value is stored in `control`.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags)) };
        control.into()
    }

    #[inline]
    pub fn set_control(control: u64) {
        let control = control as u32;
        // SAFETY: the value just read from the register, except for the bits of `FLUSHES`.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    /// The bit of FPCR for both, in float32 and float64.
    pub const FLUSHES: u64 = 1 << 24;

    #[inline]
    pub fn control() -> u64 {
        let control;
        // SAFETY: every 64-bit ARM processor has the register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
        control
    }

    #[inline]
    pub fn set_control(control: u64) {
        // SAFETY: the value just read from the register, except for the bit of `FLUSHES`.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
}

/// Other processors compute with denormals.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub const FLUSHES: u64 = 0;

    #[inline]
    pub fn control() -> u64 {
        0
    }

    pub fn set_control(_: u64) {}
}
