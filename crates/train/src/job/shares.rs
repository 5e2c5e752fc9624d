//! The division of the update of a mirrored training among its workers: which worker updates which variables, or which pieces of
//! a variable.
//!
//! Each worker updates about the same number of bytes. A variable is updated by one worker if there is room in that worker's
//! share: then nothing has to be cut or copied. Otherwise it is cut into pieces, one or more for each worker that has room left.
//! Small variables are divided in groups, whose gradients travel together. Those that are left over, and all of them if a share
//! would be small, are updated by each worker: that takes less time than to send them once more.

use meshtf_tensor::DType;

use crate::ring::BucketLimits;

/// A part of the equal share by which a worker may have more than others: to cut one more variable takes longer.
const TOLERANCE: usize = 50;

/// A dense gradient that is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The index of its variable.
    pub place: usize,
    pub dtype: DType,
    pub elements: usize,
    /// Whether parts of the variable can be updated apart.
    pub can_be_cut: bool,
}

/// Consecutive elements of a variable, and the worker that updates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub owner: usize,
    pub elements: usize,
}

/// Elements that are sent together, as a gradient and as new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Variables of one dtype that one worker updates.
    Owned { owner: usize, places: Vec<usize> },
    /// A variable in pieces, in the order of their elements.
    Cut { place: usize, pieces: Vec<Piece> },
}

/// The division of variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Division {
    pub units: Vec<Unit>,
    /// The variables that each worker updates.
    pub whole: Vec<usize>,
}

/// Divides variables among `count` workers, in the order in which their gradients are computed. The variables that are cut are
/// therefore the last ones: no computation is left while they travel, and they travel in all directions at once.
pub(super) fn divide(candidates: &[Candidate], count: usize, limits: BucketLimits) -> Division {
    let mut division = Division::default();
    let bytes = |one: &Candidate| one.elements * one.dtype.size().unwrap_or(1);
    // Of each dtype, the group that still grows.
    let mut open: Vec<(DType, usize, Vec<usize>)> = Vec::new();
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for (at, one) in candidates.iter().enumerate() {
        if count > 1 && bytes(one) > limits.joined {
            groups.push((bytes(one), vec![at]));
            continue;
        }
        let found = open.iter().position(|(dtype, ..)| *dtype == one.dtype);
        let own = found.unwrap_or_else(|| {
            open.push((one.dtype, 0, Vec::new()));
            open.len() - 1
        });
        open[own].1 += bytes(one);
        open[own].2.push(at);
        if count > 1 && open[own].1 > limits.joined {
            let (_, bytes, group) = open.swap_remove(own);
            groups.push((bytes, group));
        }
    }
    division.whole.extend(open.into_iter().flat_map(|(.., group)| group).map(|at| candidates[at].place));
    let equal = groups.iter().map(|(bytes, _)| bytes).sum::<usize>().div_ceil(count);
    if equal <= limits.undivided {
        division.whole.extend(groups.drain(..).flat_map(|(_, group)| group).map(|at| candidates[at].place));
    }
    division.whole.sort_unstable();
    let mut loads = vec![0usize; count];
    for (bytes, group) in groups {
        let (least, load) = loads.iter().copied().enumerate().min_by_key(|(_, load)| *load).unwrap_or_default();
        let fits = load + bytes <= equal + equal / TOLERANCE;
        let pieces = match group[..] {
            [at] if !fits && candidates[at].can_be_cut => cut(&candidates[at], &loads, equal, limits),
            _ => Vec::new(),
        };
        if !pieces.is_empty() {
            let one = candidates[group[0]];
            for piece in &pieces {
                loads[piece.owner] += piece.elements * one.dtype.size().unwrap_or(1);
            }
            division.units.push(Unit::Cut { place: one.place, pieces });
            continue;
        }
        loads[least] += bytes;
        let places = group.iter().map(|&at| candidates[at].place).collect();
        division.units.push(Unit::Owned { owner: least, places });
    }
    division
}

/// The pieces of a variable, none of more bytes than a bucket, such that the workers fill their shares evenly. None if no worker
/// has room for a piece that is worth a message.
fn cut(one: &Candidate, loads: &[usize], equal: usize, limits: BucketLimits) -> Vec<Piece> {
    let least = limits.joined / 2;
    let room = loads.iter().map(|&load| equal.saturating_sub(load));
    let room: Vec<usize> = room.map(|room| if room < least { 0 } else { room }).collect();
    let total = room.iter().sum::<usize>();
    if total == 0 {
        return Vec::new();
    }
    let most = (limits.bucket / one.dtype.size().unwrap_or(1)).max(1);
    let (mut pieces, mut begin, mut sum) = (Vec::new(), 0, 0);
    for (owner, &room) in room.iter().enumerate() {
        sum += room;
        // In 128 bits: the product of two sizes.
        let end = (one.elements as u128 * sum as u128 / total as u128) as usize;
        let elements = end - begin;
        let count = elements.div_ceil(most);
        pieces.extend((0..count).map(|part| Piece { owner, elements: share(elements, count, part) }));
        begin = end;
    }
    pieces
}

/// The size of a part if elements are cut into `count` parts that are as equal as possible.
pub(crate) fn share(elements: usize, count: usize, part: usize) -> usize {
    elements / count + usize::from(part < elements % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BucketLimits = BucketLimits { bucket: 4000, joined: 100, direct: 0, undivided: 0 };

    fn floats(sizes: &[usize]) -> Vec<Candidate> {
        let one = |(place, &elements)| Candidate { place, dtype: DType::F32, elements, can_be_cut: true };
        sizes.iter().enumerate().map(one).collect()
    }

    fn owned(owner: usize, places: &[usize]) -> Unit {
        Unit::Owned { owner, places: places.to_vec() }
    }

    fn pieces(place: usize, all: &[(usize, usize)]) -> Unit {
        Unit::Cut { place, pieces: all.iter().map(|&(owner, elements)| Piece { owner, elements }).collect() }
    }

    #[test]
    fn the_variables_are_whole_for_which_there_is_room() {
        for (sizes, count, units, whole) in [
            // Four bytes each. The first two are equal; the third fills both shares.
            (
                vec![500, 500, 400, 3],
                2,
                vec![owned(0, &[0]), owned(1, &[1]), pieces(2, &[(0, 200), (1, 200)])],
                vec![3],
            ),
            // The rest of unequal shares is filled.
            (vec![300, 500, 400], 2, vec![owned(0, &[0]), owned(1, &[1]), pieces(2, &[(0, 300), (1, 100)])], vec![]),
            // Within the tolerance of two per cent.
            (vec![500, 505], 2, vec![owned(0, &[0]), owned(1, &[1])], vec![]),
            // No piece is larger than a bucket.
            (vec![3000], 2, vec![pieces(0, &[(0, 750), (0, 750), (1, 750), (1, 750)])], vec![]),
            (vec![100], 3, vec![pieces(0, &[(0, 33), (1, 33), (2, 34)])], vec![]),
            // Groups of small ones; the last one is left over.
            (vec![20, 6, 20, 6, 20], 2, vec![owned(0, &[0, 1]), owned(1, &[2, 3])], vec![4]),
            (vec![500], 1, vec![], vec![0]),
            (vec![], 2, vec![], vec![]),
        ] {
            let got = divide(&floats(&sizes), count, LIMITS);
            assert_eq!(got, Division { units, whole }, "{sizes:?} among {count}");
        }
    }

    #[test]
    fn what_cannot_be_cut_is_updated_by_one_worker() {
        let mut all = floats(&[500, 500, 400]);
        all.iter_mut().for_each(|one| one.can_be_cut = false);
        let units = vec![owned(0, &[0]), owned(1, &[1]), owned(0, &[2])];
        assert_eq!(divide(&all, 2, LIMITS), Division { units, whole: vec![] });
    }

    #[test]
    fn little_is_updated_by_each_worker() {
        // 800 bytes for each of two, of which one may be undivided.
        for (undivided, count, is_divided) in [(800, 2, false), (799, 2, true), (799, 3, false)] {
            let division = divide(&floats(&[200, 200]), count, BucketLimits { undivided, ..LIMITS });
            assert_eq!((division.units.is_empty(), division.whole.is_empty()), (!is_divided, is_divided));
        }
    }

    #[test]
    fn a_piece_is_worth_a_message() {
        // There is room for 20 elements, which are too few, and for 80.
        let limits = BucketLimits { joined: 200, ..LIMITS };
        let got = divide(&floats(&[500, 440, 100]), 2, limits).units;
        assert_eq!(got, [owned(0, &[0]), owned(1, &[1]), pieces(2, &[(1, 100)])]);
    }

    #[test]
    fn groups_have_one_dtype() {
        let mut all = floats(&[10, 10, 10, 10]);
        (all[1].dtype, all[3].dtype) = (DType::F64, DType::F64);
        assert_eq!(divide(&all, 2, LIMITS), Division { units: vec![owned(0, &[1, 3])], whole: vec![0, 2] });
    }

    #[test]
    fn every_element_has_one_owner() {
        for (sizes, count) in [(vec![101, 999, 57, 1000, 3001], 3), (vec![7919], 7), (vec![31, 26, 27], 5)] {
            let division = divide(&floats(&sizes), count, LIMITS);
            let mut seen = vec![0; sizes.len()];
            division.whole.iter().for_each(|&place| seen[place] += sizes[place]);
            let mut loads = vec![0; count];
            for unit in division.units {
                match unit {
                    Unit::Owned { owner, places } => places.into_iter().for_each(|place| {
                        seen[place] += sizes[place];
                        loads[owner] += sizes[place];
                    }),
                    Unit::Cut { place, pieces } => pieces.into_iter().for_each(|piece| {
                        seen[place] += piece.elements;
                        loads[piece.owner] += piece.elements;
                        assert!(piece.elements > 0);
                    }),
                }
            }
            assert_eq!(seen, sizes);
        }
    }

    #[test]
    fn parts_are_as_equal_as_can_be() {
        for (elements, count, wanted) in [(10, 3, vec![4, 3, 3]), (9, 3, vec![3, 3, 3]), (2, 3, vec![1, 1, 0])] {
            assert_eq!((0..count).map(|part| share(elements, count, part)).collect::<Vec<_>>(), wanted);
        }
    }
}
