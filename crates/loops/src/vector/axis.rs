//! One dimension of the windows of a convolution or a pool.

/// One spatial dimension of a window laid over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    pub input: usize,
    pub window: usize,
    pub output: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Padding before the first element.
    pub before: usize,
}

impl Axis {
    /// A dimension of one element, under one window.
    pub const ONE: Axis = Axis { input: 1, window: 1, output: 1, stride: 1, dilation: 1, before: 0 };

    /// The input position under element `k` of the window at `output`; `None` in the padding.
    #[inline(always)]
    pub fn position(&self, output: usize, k: usize) -> Option<usize> {
        (output * self.stride + k * self.dilation).checked_sub(self.before).filter(|&at| at < self.input)
    }

    /// The input positions under the window at `output`, without the padding, if it is not dilated.
    #[inline(always)]
    pub fn under(&self, output: usize) -> std::ops::Range<usize> {
        let start = output * self.stride;
        let end = (start + self.window).saturating_sub(self.before).min(self.input);
        start.saturating_sub(self.before).min(end)..end
    }

    /// The windows that may cover a position from `first` on and before `end`, if they are not dilated.
    #[inline(always)]
    pub(super) fn over(&self, first: usize, end: usize) -> std::ops::Range<usize> {
        let from = (first + self.before + 1).saturating_sub(self.window).div_ceil(self.stride);
        let to = ((end - 1 + self.before) / self.stride + 1).min(self.output);
        from.min(to)..to
    }

    /// Most positions under a window.
    #[inline]
    pub(super) fn most(&self) -> usize {
        self.window.min(self.input)
    }
}
