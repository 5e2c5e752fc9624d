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

/// Levenshtein's edit distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_offered() {
        let known = ["local/0", "local/1", "worker/0"];
        assert_eq!(nearest("locl/1", known), ["local/1", "local/0"]);
        assert!(nearest("ps/0", known).is_empty());
    }
}
