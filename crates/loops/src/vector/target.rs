//! Loops compiled once for each kind of processor; a run takes the widest copy that its processor supports.
//!
//! The baseline of x86-64 computes on four floats at a time, while most processors in use take eight or sixteen. A loop is
//! written once, as plain Rust that the compiler can vectorise. No sum has an order that follows from the width, so the
//! result of a [`Work`] does not depend on the copy that ran. That of a [`FusedWork`] has the same bounds of error in all of
//! them; its last bits are those of processors with an instruction that multiplies and adds (from 2013 on), or of those
//! without.

#![allow(unsafe_code, reason = "what is compiled for a processor is called only where that is the processor")]

/// A loop. `run` is to be inlined always, with all that it calls, so that it is compiled for the intended processor.
pub trait Work {
    fn run(self);
}

/// As [`Work`], for a loop that multiplies and adds, with one rounding where the processor can.
pub trait FusedWork {
    fn run<M: MulAdd>(self);
}

/// Multiplication and addition in a copy of a loop.
pub trait MulAdd {
    /// x y + z. To be inlined always.
    fn mul_add(x: f32, y: f32, z: f32) -> f32;
}

/// By the processor's instruction, in code that is compiled for a processor that has it; elsewhere this is a slow call.
pub struct RoundedOnce;

impl MulAdd for RoundedOnce {
    #[inline(always)]
    fn mul_add(x: f32, y: f32, z: f32) -> f32 {
        x.mul_add(y, z)
    }
}

/// By two instructions, where there is not one for both. ARM has one everywhere.
#[cfg(any(not(target_arch = "aarch64"), test))]
pub struct RoundedTwice;

#[cfg(any(not(target_arch = "aarch64"), test))]
impl MulAdd for RoundedTwice {
    #[inline(always)]
    fn mul_add(x: f32, y: f32, z: f32) -> f32 {
        x * y + z
    }
}

/// A loop without multiply-add.
struct Plain<W>(W);

impl<W: Work> FusedWork for Plain<W> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        self.0.run();
    }
}

/// Runs a loop as compiled for this processor.
#[inline]
pub fn widest<W: Work>(work: W) {
    widest_fused(Plain(work));
}

/// Runs a loop as compiled for this processor.
#[cfg(target_arch = "x86_64")]
pub fn widest_fused<W: FusedWork>(work: W) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn sixteen<W: FusedWork>(work: W) {
        work.run::<RoundedOnce>();
    }
    #[target_feature(enable = "avx2,fma")]
    fn eight<W: FusedWork>(work: W) {
        work.run::<RoundedOnce>();
    }
    // Detection costs a load and a comparison: the standard library caches the result.
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let has_avx512 = has_avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if has_avx512 {
        // SAFETY: the processor was just detected to have all of these features.
        unsafe { sixteen(work) }
    } else if has_avx2 {
        // SAFETY: as above.
        unsafe { eight(work) }
    } else {
        work.run::<RoundedTwice>();
    }
}

/// Runs a loop as compiled for this processor: the baseline of ARM has an instruction that multiplies and adds.
#[cfg(target_arch = "aarch64")]
pub fn widest_fused<W: FusedWork>(work: W) {
    work.run::<RoundedOnce>();
}

/// Runs a loop as compiled for this processor: elsewhere, processors have no more than the baseline.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn widest_fused<W: FusedWork>(work: W) {
    work.run::<RoundedTwice>();
}
