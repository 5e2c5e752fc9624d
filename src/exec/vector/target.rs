//! Loops compiled once for each kind of processor, of which a run takes the widest that its processor has.
//!
//! The baseline of x86-64 computes on four floats at a time, while most processors in use take eight or sixteen. A loop is
//! written once, as plain Rust that the compiler can vectorise, and no answer depends on which of the copies ran: there is
//! no fused multiply-add in it, and no sum whose order follows from the width.

#![allow(unsafe_code, reason = "what is compiled for a processor is called only where that is the processor")]

/// A loop. `run` is to be inlined always, with all that it calls, so that it is compiled for the processor that is meant.
pub trait Work {
    fn run(self);
}

/// Runs a loop as compiled for this processor.
#[cfg(target_arch = "x86_64")]
pub fn widest<W: Work>(work: W) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn sixteen<W: Work>(work: W) {
        work.run();
    }
    #[target_feature(enable = "avx2,fma")]
    fn eight<W: Work>(work: W) {
        work.run();
    }
    // Asking costs a load and a comparison: the standard library keeps the answers.
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let has_avx512 = has_avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if has_avx512 {
        // SAFETY: the processor has just said that it has all of these features.
        unsafe { sixteen(work) }
    } else if has_avx2 {
        // SAFETY: as above.
        unsafe { eight(work) }
    } else {
        work.run();
    }
}

/// Runs a loop as compiled for this processor: elsewhere the baseline is what processors have.
#[cfg(not(target_arch = "x86_64"))]
pub fn widest<W: Work>(work: W) {
    work.run();
}
