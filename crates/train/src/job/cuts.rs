//! The choice of cuts: consecutive units are divided into stages of which the slowest is as fast as can be.

/// The most that a stage may take of the time of the slowest one of the best choice, for cuts that fewer values cross.
const SLACK: f64 = 1.1;
/// Most units whose borders are all tried; of more, those that the fewest values cross.
const MOST_TRIED: usize = 1024;
/// Most choices that are compared.
const MOST_COMPARED: usize = 1 << 28;

/// The units of a model in their order.
pub(super) struct Row {
    /// The arithmetic of each.
    pub work: Vec<f64>,
    /// Whether a unit has a trained variable.
    pub trains: Vec<bool>,
    /// The elements that are sent, for an example, by a cut before each unit.
    pub crossing: Vec<f64>,
}

impl Row {
    /// The units with which the stages begin: each stage trains a variable, the slowest one takes as little time as possible
    /// or at most a tenth more, and then as few elements as possible are sent. `None`: there are more stages than units with
    /// variables.
    pub fn cut(&self, stages: usize) -> Option<Vec<usize>> {
        let borders = self.borders(stages);
        let (mut work, mut trained) = (vec![0.0], vec![0usize]);
        for at in 0..self.work.len() {
            work.push(work[at] + self.work[at]);
            trained.push(trained[at] + usize::from(self.trains[at]));
        }
        let took = |from: usize, to: usize| {
            let (from, to) = (borders[from], borders[to]);
            (trained[to] > trained[from]).then(|| work[to] - work[from])
        };
        let slowest = best(borders.len() - 1, stages, |before, from, to| took(from, to).map(|own| own.max(before)))?;
        let limit = slowest.0 * SLACK + 1e-9;
        let sent = best(borders.len() - 1, stages, |before, from, to| {
            let crossing = if from == 0 { 0.0 } else { self.crossing[borders[from]] };
            took(from, to).filter(|&own| own <= limit).map(|_| before + crossing)
        })?;
        Some(sent.1.into_iter().map(|border| borders[border]).collect())
    }

    /// The number of stages that the model can be cut into.
    pub fn most(&self) -> usize {
        self.trains.iter().filter(|&&trains| trains).count()
    }

    /// The places of possible cuts: the first unit, some between, and the end.
    fn borders(&self, stages: usize) -> Vec<usize> {
        let count = self.work.len();
        let most = ((MOST_COMPARED / stages.max(1)) as f64).sqrt() as usize;
        let most = most.min(MOST_TRIED).max(stages.saturating_mul(2));
        if count <= most {
            return (0..=count).collect();
        }
        // Those before units with variables first, so that there are as many stages as are wanted.
        let mut inner: Vec<usize> = (1..count).collect();
        inner.sort_by(|&a, &b| {
            (!self.trains[a], self.crossing[a], a)
                .partial_cmp(&(!self.trains[b], self.crossing[b], b))
                .unwrap_or(a.cmp(&b))
        });
        let mut borders: Vec<usize> = [0, count].into_iter().chain(inner.into_iter().take(most)).collect();
        borders.sort_unstable();
        borders
    }
}

/// The least value of a division of `borders` intervals into stages, given the value up to a stage, and the borders where that
/// begins and ends; and where the stages of that division begin.
fn best(borders: usize, stages: usize, value: impl Fn(f64, usize, usize) -> Option<f64>) -> Option<(f64, Vec<usize>)> {
    let mut known: Vec<Option<f64>> = vec![None; borders + 1];
    known[0] = Some(0.0);
    let mut begins = Vec::with_capacity(stages);
    for _ in 0..stages {
        let mut next = vec![None; borders + 1];
        let mut from = vec![0; borders + 1];
        for to in 1..=borders {
            for (begin, known) in known[..to].iter().enumerate() {
                let Some(found) = known.and_then(|before| value(before, begin, to)) else { continue };
                if next[to].is_none_or(|least| found < least) {
                    (next[to], from[to]) = (Some(found), begin);
                }
            }
        }
        known = next;
        begins.push(from);
    }
    let least = known[borders]?;
    let (mut at, mut starts) = (borders, Vec::with_capacity(stages));
    for from in begins.iter().rev() {
        at = from[at];
        starts.push(at);
    }
    starts.reverse();
    Some((least, starts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(work: &[f64], trains: &[usize], crossing: &[f64]) -> Row {
        let trains = (0..work.len()).map(|at| trains.contains(&at)).collect();
        Row { work: work.to_vec(), trains, crossing: crossing.to_vec() }
    }

    /// The best of all divisions, by trying them all.
    fn tried(row: &Row, stages: usize) -> Option<f64> {
        let count = row.work.len();
        let mut least: Option<f64> = None;
        for mask in 0u32..1 << (count - 1) {
            let mut starts = vec![0];
            starts.extend((1..count).filter(|at| mask >> (at - 1) & 1 == 1));
            if starts.len() != stages {
                continue;
            }
            let ends = starts[1..].iter().copied().chain([count]);
            let parts: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
            if parts.iter().all(|&(from, to)| row.trains[from..to].contains(&true)) {
                let slowest = parts.iter().map(|&(from, to)| row.work[from..to].iter().sum()).fold(0.0, f64::max);
                least = Some(least.map_or(slowest, |least: f64| least.min(slowest)));
            }
        }
        least
    }

    #[test]
    fn the_slowest_stage_is_as_fast_as_can_be() {
        let work = [4.0, 1.0, 7.0, 2.0, 2.0, 9.0, 3.0, 3.0];
        for trains in [vec![0, 2, 3, 5, 7], vec![1, 2, 6], (0..8).collect()] {
            let row = row(&work, &trains, &[1.0; 8]);
            for stages in 1..=8 {
                let wanted = tried(&row, stages);
                let found = row.cut(stages).map(|starts| {
                    assert!(starts.len() == stages && starts[0] == 0);
                    let ends = starts[1..].iter().copied().chain([8]);
                    let parts = starts.iter().copied().zip(ends);
                    parts.map(|(from, to)| work[from..to].iter().sum()).fold(0.0, f64::max)
                });
                assert_eq!(found.is_some(), wanted.is_some() && stages <= row.most(), "{trains:?} {stages}");
                // Of equal crossings, any choice within a tenth.
                assert!(found.zip(wanted).is_none_or(|(found, wanted)| found <= 1.1 * wanted + 1e-6));
            }
        }
    }

    #[test]
    fn a_cut_is_where_few_elements_cross() {
        let all: Vec<usize> = (0..6).collect();
        let row = row(&[10.0, 10.0, 0.5, 0.5, 10.0, 10.0], &all, &[0.0, 5.0, 9.0, 3.0, 8.0, 5.0]);
        assert_eq!(row.cut(2), Some(vec![0, 3]));
        // Not if a stage is much slower for it.
        assert_eq!(row.cut(4), Some(vec![0, 1, 3, 5]));
        assert_eq!((row.cut(7), row.most()), (None, 6));
    }

    #[test]
    fn a_long_row_is_cut_too() {
        let count = 5000;
        let trains: Vec<usize> = (0..count).step_by(500).collect();
        let crossing: Vec<f64> = (0..count).map(|at| if at % 100 == 0 { 1.0 } else { 50.0 }).collect();
        let row = row(&vec![1.0; count], &trains, &crossing);
        let second = row.cut(2).unwrap()[1];
        assert!((2250..=2750).contains(&second) && second.is_multiple_of(100), "{second}");
        let cut = row.cut(10).unwrap();
        assert_eq!(cut.len(), 10);
        assert!(cut.iter().all(|at| at % 100 == 0), "{cut:?}");
        assert_eq!(row.cut(11), None);
    }
}
