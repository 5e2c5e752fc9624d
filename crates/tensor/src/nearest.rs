//! "Did you mean": the known names nearest to one that is unknown.

/// Longest name, in bytes, for which similar names are searched.
const MAX_BYTES: usize = 256;

/// Most pairs of letters compared for one name: with a million known names, nothing is suggested for a long one.
const MAX_COMPARED: usize = 64 << 20;

/// Most names that are suggested.
const MOST: usize = 3;

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
        // Each missing or extra letter is an edit, and a letter has at most four bytes.
        if candidate.len() > 4 * (letters + limit) || candidate.chars().count().abs_diff(letters) > limit {
            continue;
        }
        let Some(rest) = left.checked_sub(letters * candidate.len()) else { break };
        left = rest;
        // Swapped neighbours are one edit, since they are one typing error.
        let edits = strsim::osa_distance(&wanted, &candidate.to_lowercase());
        if edits <= limit {
            near.push((edits, candidate));
        }
    }
    near.sort_unstable();
    near.into_iter().take(MOST).map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
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
