//! Patterns of file names.

/// Most folder entries that are matched against one pattern.
pub const MAX_ENTRIES: usize = 1 << 22;

/// Whether a name matches a pattern by TensorFlow's rules, whose sets and escapes differ from those of the usual
/// libraries: `*` is any text, `?` any character, `[a-z]` one of a set, and `\` takes the character after it literally.
/// Takes time in proportion to the product of both lengths.
pub fn is_match(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The position of the last star, and the position in the name up to which it reaches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one_matches(&pattern, p, name[n]) {
            (p, n) = (next, n + 1);
        } else if let Some((at, reach)) = star {
            star = Some((at, reach + 1));
            (p, n) = (at + 1, reach + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// The position in the pattern after its part at `p`, if that part matches the character.
fn one_matches(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match pattern.get(p)? {
        '?' => Some(p + 1),
        '\\' => (*pattern.get(p + 1)? == c).then_some(p + 2),
        '[' => {
            let negated = matches!(pattern.get(p + 1), Some('!' | '^'));
            let first = p + 1 + usize::from(negated);
            let end = first + 1 + pattern.get(first + 1..)?.iter().position(|&c| c == ']')?;
            let set = &pattern[first..end];
            let mut at = 0;
            let mut holds = false;
            while at < set.len() {
                if at + 2 < set.len() && set[at + 1] == '-' {
                    holds |= (set[at]..=set[at + 2]).contains(&c);
                    at += 3;
                } else {
                    holds |= set[at] == c;
                    at += 1;
                }
            }
            (holds != negated).then_some(end + 1)
        }
        &plain => (plain == c).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        let check =
            |pattern: &str, name: &str, want: bool| assert_eq!(is_match(pattern, name), want, "{pattern} {name}");
        check("a*c", "abbc", true);
        check("a*c", "abcd", false);
        check("*.txt*", "x.txt", true);
        check("?b", "ab", true);
        check("?b", "b", false);
        check("[a-c]1", "b1", true);
        check("[!a-c]1", "b1", false);
        check("[ab", "a", false);
        check("\\*", "*", true);
        check("\\*", "a", false);
        check("**a**", "bab", true);
        check("", "", true);
        check(&"*a".repeat(40), &"a".repeat(300), true);
        check(&format!("{}b", "*a".repeat(40)), &"a".repeat(300), false);
    }
}
