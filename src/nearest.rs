//! "Did you mean": the known names nearest to one that is unknown.

/// The candidates that differ from `name` by at most a third of its letters (case aside), best first, at most three.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let limit = (wanted.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(d, _)| *d <= limit)
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, candidate)| candidate).collect()
}

/// Edit distance in characters; two neighbours swapped are one edit, as that is one slip of the hand.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    // The rows for two letters less of `a`, for one less, and for this one.
    let mut older = vec![0; b.len() + 1];
    let mut old: Vec<usize> = (0..=b.len()).collect();
    let mut row = vec![0; b.len() + 1];
    for i in 0..a.len() {
        row[0] = i + 1;
        for j in 0..b.len() {
            let substituted = old[j] + usize::from(a[i] != b[j]);
            row[j + 1] = substituted.min(row[j] + 1).min(old[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(older[j - 1] + 1);
            }
        }
        std::mem::swap(&mut older, &mut old);
        std::mem::swap(&mut old, &mut row);
    }
    old[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_offered() {
        let known = ["local/0", "local/1", "worker/0"];
        assert_eq!(nearest("locl/1", known), ["local/1", "local/0"]);
        assert!(nearest("ps/0", known).is_empty());
        assert_eq!(nearest("cuont", ["count", "mount"]), ["count"]);
        assert_eq!(nearest("Matmul", ["MatMul", "Mul"]), ["MatMul"]);
    }
}
