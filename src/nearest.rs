//! "Did you mean": the known names nearest to one that is unknown.

/// Longest name that neighbours are looked for, in bytes.
const MAX_BYTES: usize = 256;

/// Most pairs of letters that are compared for one name: whoever has a million names is told no neighbours of a long one.
const MAX_COMPARED: usize = 64 << 20;

/// The candidates that differ from `name` by at most a third of its letters (case aside), best first, at most three.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > MAX_BYTES {
        return Vec::new();
    }
    let wanted = name.to_lowercase();
    let letters = wanted.chars().count();
    let limit = (letters / 3).max(1);
    let mut left = MAX_COMPARED;
    let mut near: Vec<(usize, &str)> = Vec::new();
    for candidate in candidates {
        // Each letter more or less is an edit, and a letter is at most four bytes.
        if candidate.len() > 4 * (letters + limit) || candidate.chars().count().abs_diff(letters) > limit {
            continue;
        }
        let Some(rest) = left.checked_sub(letters * candidate.len()) else { break };
        left = rest;
        let edits = distance(&wanted, &candidate.to_lowercase());
        if edits <= limit {
            near.push((edits, candidate));
        }
    }
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

    #[test]
    fn long_names_and_many_cost_little() {
        let long = "x".repeat(1 << 20);
        let candidates = vec![long.as_str(); 1000];
        assert!(nearest(&long, candidates.clone()).is_empty());
        assert_eq!(nearest("ab", candidates.into_iter().chain(["abc"])), ["abc"]);
        let many: Vec<String> = (0..1_000_000).map(|i| format!("{}{i:07}", "y".repeat(240))).collect();
        assert!(nearest(&"z".repeat(247), many.iter().map(String::as_str)).is_empty());
    }
}
