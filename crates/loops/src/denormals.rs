//! Denormal floats count as zero while kernels run, as in TensorFlow, whose threads are set so: a processor takes up to a
//! hundred times as long over one, and what has come so close to zero is seldom worth that.
//!
//! It is a setting of a thread, not of a kernel: threads that compute for devices have it, those that run a step inline have it
//! meanwhile, and the others of the process never do. What only moves a number leaves it as it is; and reading and writing
//! numbers as text works on their bits, wherever it happens.

#![allow(unsafe_code, reason = "the processor's control register is read and written")]

use std::sync::Once;

use register::{FLUSHES, control, set_control};

/// Lets the calling thread, and the pool that kernels spread their work over, take denormals for zero and answer zero
/// instead of one.
pub fn flush() {
    on_this_thread();
    static POOL: Once = Once::new();
    POOL.call_once(on_the_pool);
}

/// While this exists, the calling thread has that setting, too.
pub struct Flushed {
    before: u64,
}

impl Flushed {
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

/// The threads of rayon's global pool, no matter what started it. Other pools are started by the thread that computes, and a
/// thread begins with the settings of the one that starts it.
fn on_the_pool() {
    rayon::broadcast(|_| on_this_thread());
}

/// The register of a processor that has the settings.
///
/// Rust takes it for granted that nobody changes these settings, and computes in advance what it can accordingly: all that
/// can come of it is a denormal instead of the zero that the processor would have answered.
#[cfg(target_arch = "x86_64")]
mod register {
    /// The bits of MXCSR: results that are denormal become zero, and operands that are count as zero.
    pub const FLUSHES: u64 = 1 << 15 | 1 << 6;

    pub fn control() -> u64 {
        let mut control = 0u32;
        // SAFETY: every x86-64 processor has the register, which is written to `control`.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags)) };
        control.into()
    }

    pub fn set_control(control: u64) {
        let control = control as u32;
        // SAFETY: what was read of the register, but for the bits of `FLUSHES`.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    /// The bit of FPCR for both, in float32 and float64.
    pub const FLUSHES: u64 = 1 << 24;

    pub fn control() -> u64 {
        let control;
        // SAFETY: every 64-bit ARM processor has the register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
        control
    }

    pub fn set_control(control: u64) {
        // SAFETY: what was read of the register, but for the bit of `FLUSHES`.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
}

/// Other processors compute with denormals.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub const FLUSHES: u64 = 0;

    pub fn control() -> u64 {
        0
    }

    pub fn set_control(_: u64) {}
}
