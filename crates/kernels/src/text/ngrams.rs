//! StringNGrams: runs of neighbouring strings of each row of a ragged tensor, joined.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Tensor};

use super::super::call::{check_text_bytes, take};
use super::super::{HostKernel, KernelNode, Outputs};

struct Rules {
    separator: Vec<u8>,
    widths: Vec<i64>,
    left: Vec<u8>,
    right: Vec<u8>,
    /// The maximum number of pads at each end; negative for as many as fit.
    pads: i64,
    keeps_short: bool,
}

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let rules = Rules {
        separator: node.attrs.bytes("separator")?.to_vec(),
        widths: node.attrs.ints("ngram_widths")?.to_vec(),
        left: node.attrs.bytes("left_pad")?.to_vec(),
        right: node.attrs.bytes("right_pad")?.to_vec(),
        pads: node.attrs.int("pad_width")?,
        keeps_short: node.attrs.bool("preserve_short_sequences")?,
    };
    Ok(Box::new(move |inputs| {
        let [data, splits] = take(inputs)?;
        rules.joined(&data, &splits)
    }))
}

impl Rules {
    fn joined(&self, data: &Tensor, splits: &Tensor) -> Result<Outputs> {
        if self.widths.iter().any(|&width| width <= 0) {
            return Err(Failure::invalid("ngram_widths must contain positive values"));
        }
        let texts = data.slice::<Vec<u8>>()?;
        let rows = checked(&splits.to_i64s()?, texts.len())?;
        let rows = if texts.is_empty() { &[] } else { &rows[..] };
        let (mut joined, mut ends, mut bytes) = (Vec::new(), vec![0; splits.len().min(1)], 0);
        let mut pace = Pace::new();
        for row in rows.windows(2) {
            let row = texts.get(row[0]..row[1]).unwrap_or_default();
            let before = joined.len();
            for &width in &self.widths {
                let pads = self.pads_of(width);
                let count =
                    (row.len() as i64).saturating_add(pads.saturating_mul(2)).saturating_sub(width).saturating_add(1);
                for at in 0..count.max(0) {
                    joined.push(self.one(row, at, count, width, &mut bytes, &mut pace)?);
                }
            }
            if self.keeps_short && joined.len() == before && !row.is_empty() {
                if self.pads < 0 {
                    let why = "Pad width should be >= 0 when preserve_short_sequences is True and ngram_widths are not \
                               provided, got ";
                    return Err(Failure::invalid(format!("{why}{}", self.pads)));
                }
                let width = (row.len() as i64).saturating_add(self.pads.saturating_mul(2));
                joined.push(self.one(row, 0, 1, width, &mut bytes, &mut pace)?);
            }
            ends.push(joined.len() as i64);
        }
        ends.resize(splits.len(), 0);
        let splits = if splits.dtype() == DType::I32 {
            Tensor::from_vec(splits.shape().clone(), ends.into_iter().map(|end| end as i32).collect())
        } else {
            Tensor::from_vec(splits.shape().clone(), ends)
        };
        Ok(Outputs::from_iter([Tensor::vector(joined), splits]))
    }

    #[inline]
    fn pads_of(&self, width: i64) -> i64 {
        if self.pads < 0 { width - 1 } else { self.pads.min(width - 1) }
    }

    /// The run with index `at` of `count`, with its pads at both ends.
    fn one(
        &self,
        row: &[Vec<u8>],
        at: i64,
        count: i64,
        width: i64,
        bytes: &mut usize,
        pace: &mut Pace,
    ) -> Result<Vec<u8>> {
        let pads = self.pads_of(width);
        let (left, right) = ((pads - at).max(0), (pads - (count - (at + 1))).max(0));
        let first = if left > 0 { 0 } else { (at - pads) as usize };
        let own = row
            .get(first..first + width.saturating_sub(left).saturating_sub(right).max(0) as usize)
            .unwrap_or_default();
        let size = own.iter().map(Vec::len).sum::<usize>().saturating_add(
            (left as usize)
                .saturating_mul(self.left.len())
                .saturating_add((right as usize).saturating_mul(self.right.len()))
                .saturating_add(left.saturating_add(right) as usize)
                .saturating_add((width as usize).saturating_mul(self.separator.len())),
        );
        *bytes = bytes.saturating_add(size).saturating_add(size_of::<Vec<u8>>());
        check_text_bytes(*bytes)?;
        memory::grow()?;
        pace.go(32 + size);
        let pieces = std::iter::repeat_n(&self.left, left as usize)
            .chain(own)
            .chain(std::iter::repeat_n(&self.right, right as usize));
        let mut joined = Vec::with_capacity(size);
        for (i, piece) in pieces.enumerate() {
            if i > 0 {
                joined.extend_from_slice(&self.separator);
            }
            joined.extend_from_slice(piece);
        }
        Ok(joined)
    }
}

/// The start of each row and the end of the last, after a check.
fn checked(splits: &[i64], count: usize) -> Result<Vec<usize>> {
    let (Some(first), Some(last)) = (splits.first(), splits.last()) else { return Ok(Vec::new()) };
    if *first != 0 {
        return Err(Failure::invalid(format!("First split value must be 0, got {first}")));
    }
    for pair in splits.windows(2) {
        if pair[1] < pair[0] || pair[1] > count as i64 {
            let why = format!("Invalid split value {}, must be in [{}, {count}]", pair[1], pair[0]);
            return Err(Failure::invalid(why));
        }
    }
    if *last != count as i64 {
        let why = format!("Last split value must be data size. Expected {count}, got {last}");
        return Err(Failure::invalid(why));
    }
    Ok(splits.iter().map(|&split| split as usize).collect())
}
