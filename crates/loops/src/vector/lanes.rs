//! Registers of floats, for the few loops that a compiler does not keep in registers by itself: products, and the gradient of
//! the largest of several numbers.
//!
//! Like a [`FusedWork`](super::target::FusedWork), these fuse multiplication and addition if the processor does, as all
//! products of matrices do: the last bit of a result depends on the processor.

#![allow(unsafe_code, reason = "what a processor computes with is used only where that is the processor")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _CMP_EQ_OQ, _CMP_EQ_UQ, _mm256_and_ps, _mm256_andnot_ps, _mm256_cmp_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_castpd_ps, _mm512_castps_pd,
    _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_set1_ps,
    _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};

use super::transpose::TILE;

/// A register.
///
/// # Safety
/// Its functions are called only on a processor that has such registers. They are to be inlined always.
pub unsafe trait Lanes: Copy {
    /// The number of floats in it.
    const COUNT: usize;

    /// # Safety
    /// See the trait.
    unsafe fn splat(x: f32) -> Self;

    /// # Safety
    /// See the trait; [`Lanes::COUNT`] floats can be read from `from`.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// See the trait; [`Lanes::COUNT`] floats can be written to `to`.
    unsafe fn store(self, to: *mut f32);

    /// The sum of this and a product.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn plus(self, x: Self, y: Self) -> Self;

    /// The larger of each two numbers; this one's if one is NaN.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn larger(self, x: Self) -> Self;

    /// These numbers where the other two are equal, with zeros in the other lanes; and these numbers where they are not,
    /// likewise. Where `OR_NAN`, every number counts as equal to NaN, too.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn parted<const OR_NAN: bool>(self, x: Self, y: Self) -> [Self; 2];

    /// Writes the columns of a tile, which begin `stride` floats apart, to rows that begin `step` apart.
    ///
    /// # Safety
    /// See the trait; [`TILE`] columns of as many floats can be read from `from`, and as many rows written to `to`.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, step: usize) {
        // SAFETY: the caller's.
        unsafe {
            let column = |j: usize| from.add(j * stride).cast::<[f32; TILE]>().read_unaligned();
            let tile: [[f32; TILE]; TILE] = std::array::from_fn(column);
            for (i, to) in (0..TILE).map(|i| to.wrapping_add(i * step)).enumerate() {
                let row: [f32; TILE] = std::array::from_fn(|j| tile[j][i]);
                to.cast::<[f32; TILE]>().write_unaligned(row);
            }
        }
    }
}

/// A loop that computes with registers. `run` is to be inlined always, with all that it calls, so that it is compiled for the
/// intended processor.
pub trait Registered {
    /// # Safety
    /// The processor has these registers.
    unsafe fn run<L: Lanes>(self);
}

/// The width of a processor's registers: the number of floats in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Width(usize);

impl Width {
    /// The widest that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub fn widest() -> Width {
        // Detection costs a load and a comparison: the standard library caches the result.
        match (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"), is_x86_feature_detected!("avx512f"))
        {
            (true, true) => Width(<__m512 as Lanes>::COUNT),
            (true, false) => Width(<__m256 as Lanes>::COUNT),
            _ => Width(Four::COUNT),
        }
    }

    /// The widest that this processor has.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn widest() -> Width {
        Width(Four::COUNT)
    }

    /// All that this processor has.
    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = Width> {
        [Width(4), Width(8), Width(16)].into_iter().filter(|width| *width <= Width::widest())
    }

    /// The number of floats in a register.
    #[inline]
    pub fn lanes(self) -> usize {
        self.0
    }

    /// Runs a loop with these registers.
    #[cfg(target_arch = "x86_64")]
    pub fn run<W: Registered>(self, work: W) {
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn sixteen<W: Registered>(work: W) {
            // SAFETY: the function is compiled for them.
            unsafe { work.run::<__m512>() }
        }
        #[target_feature(enable = "avx2,fma")]
        fn eight<W: Registered>(work: W) {
            // SAFETY: as above.
            unsafe { work.run::<__m256>() }
        }
        // SAFETY: a width exists only if the processor has it, and every processor has the narrowest.
        unsafe {
            match self.0 {
                16 => sixteen(work),
                8 => eight(work),
                _ => work.run::<Four>(),
            }
        }
    }

    /// Runs a loop with these registers.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn run<W: Registered>(self, work: W) {
        // SAFETY: every processor computes with four floats, one by one if need be.
        unsafe { work.run::<Four>() }
    }
}

/// `N` floats, which a compiler puts into registers of the baseline.
#[derive(Clone, Copy)]
pub struct Floats<const N: usize>([f32; N]);

/// A register of the baseline.
pub type Four = Floats<4>;

/// A float by itself.
pub type Single = Floats<1>;

// SAFETY: this is plain Rust.
unsafe impl<const N: usize> Lanes for Floats<N> {
    const COUNT: usize = N;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Floats([x; N])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's.
        Floats(unsafe { from.cast::<[f32; N]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[f32; N]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, x: Self, y: Self) -> Self {
        // The baseline of x86-64 has no instruction for multiply-add, that of ARM has.
        let plus =
            |sum: f32, x: f32, y: f32| if cfg!(target_arch = "aarch64") { x.mul_add(y, sum) } else { sum + x * y };
        Floats(std::array::from_fn(|i| plus(self.0[i], x.0[i], y.0[i])))
    }

    #[inline(always)]
    unsafe fn larger(self, x: Self) -> Self {
        let Floats(mut largest) = self;
        for (largest, x) in largest.iter_mut().zip(x.0) {
            *largest = if x > *largest { x } else { *largest };
        }
        Floats(largest)
    }

    #[inline(always)]
    unsafe fn parted<const OR_NAN: bool>(self, x: Self, y: Self) -> [Self; 2] {
        let (mut equal, mut other) = ([0f32; N], [0f32; N]);
        for i in 0..N {
            let is_equal = x.0[i] == y.0[i] || OR_NAN && (x.0[i].is_nan() || y.0[i].is_nan());
            equal[i] = if is_equal { self.0[i] } else { 0.0 };
            other[i] = if is_equal { 0.0 } else { self.0[i] };
        }
        [Floats(equal), Floats(other)]
    }
}

/// Implements [`Lanes`] by the processor's instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes {
    (
        $register:ty,
        $count:literal,
        $splat:ident,
        $load:ident,
        $store:ident,
        $plus:ident,
        $max:ident,
        $parted:item
        $(, $transpose:item)?
    ) => {
        // SAFETY: each function consists of instructions that a processor with such registers has.
        unsafe impl Lanes for $register {
            const COUNT: usize = $count;

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self {
                // SAFETY: the caller's, as in the other functions.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn plus(self, x: Self, y: Self) -> Self {
                unsafe { $plus(x, y, self) }
            }

            #[inline(always)]
            unsafe fn larger(self, x: Self) -> Self {
                // If one is NaN, the instruction returns its second operand.
                unsafe { $max(x, self) }
            }

            $parted

            $($transpose)?
        }
    };
}

#[cfg(target_arch = "x86_64")]
lanes!(
    __m512,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps,
    #[inline(always)]
    unsafe fn parted<const OR_NAN: bool>(self, x: Self, y: Self) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe {
            let equal =
                if OR_NAN { _mm512_cmp_ps_mask::<_CMP_EQ_UQ>(x, y) } else { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(x, y) };
            [_mm512_maskz_mov_ps(equal, self), _mm512_maskz_mov_ps(!equal, self)]
        }
    },
    // The compiled loop of the default takes four times as long.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, step: usize) {
        // SAFETY: the caller's.
        unsafe {
            // No closures: a compiler might make functions of them, for a processor without such registers.
            let mut tile = [_mm512_set1_ps(0.0); TILE];
            for (j, column) in tile.iter_mut().enumerate() {
                *column = _mm512_loadu_ps(from.add(j * stride));
            }
            // Columns are interleaved by one float, then by two: each quarter of a register has four floats of a row.
            for j in (0..TILE).step_by(2) {
                let (x, y) = (tile[j], tile[j + 1]);
                tile[j] = _mm512_unpacklo_ps(x, y);
                tile[j + 1] = _mm512_unpackhi_ps(x, y);
            }
            for j in (0..TILE).step_by(4) {
                let (a, b) = (_mm512_castps_pd(tile[j]), _mm512_castps_pd(tile[j + 1]));
                let (c, d) = (_mm512_castps_pd(tile[j + 2]), _mm512_castps_pd(tile[j + 3]));
                tile[j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                tile[j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                tile[j + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                tile[j + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            // Then the quarters are distributed over their rows: each register has one of rows i, i + 4, i + 8 and i + 12.
            for i in 0..4 {
                let (a, b, c, d) = (tile[i], tile[i + 4], tile[i + 8], tile[i + 12]);
                let (x, y) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d));
                _mm512_storeu_ps(to.add(i * step), _mm512_shuffle_f32x4::<0x88>(x, y));
                _mm512_storeu_ps(to.add((i + 8) * step), _mm512_shuffle_f32x4::<0xdd>(x, y));
                let (x, y) = (_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d));
                _mm512_storeu_ps(to.add((i + 4) * step), _mm512_shuffle_f32x4::<0x88>(x, y));
                _mm512_storeu_ps(to.add((i + 12) * step), _mm512_shuffle_f32x4::<0xdd>(x, y));
            }
        }
    }
);
#[cfg(target_arch = "x86_64")]
lanes!(
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_max_ps,
    #[inline(always)]
    unsafe fn parted<const OR_NAN: bool>(self, x: Self, y: Self) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe {
            let equal = if OR_NAN { _mm256_cmp_ps::<_CMP_EQ_UQ>(x, y) } else { _mm256_cmp_ps::<_CMP_EQ_OQ>(x, y) };
            [_mm256_and_ps(equal, self), _mm256_andnot_ps(equal, self)]
        }
    }
);
