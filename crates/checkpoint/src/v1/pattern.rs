//! File name patterns: `*` matches any number of characters, `?` one, `[a-c]` one of those, `[!a-c]` any other, and a
//! backslash quotes the next character. Only the last part of a path may have them. This is `fnmatch`, which TensorFlow
//! calls; the crates for such patterns also interpret `**` and `{a,b}`.

/// Whether a name contains a special character.
pub fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[\\".contains(byte))
}

/// Whether a name matches a pattern. Takes time at most proportional to the product of their lengths.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // The last star's position, and how much of the name it covers: on a mismatch it covers one character more.
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, seen));
            at += 1;
        } else if let Some(length) = one(&pattern[at..], name[seen]) {
            at += length;
            seen += 1;
        } else if let Some((star_at, taken)) = &mut star {
            *taken += 1;
            (at, seen) = (*star_at + 1, *taken);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Matches the first element of a pattern with a byte; returns the element's length if it matches.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', own, ..] => (*own == byte).then_some(2),
        [b'[', set @ ..] => {
            let (is_not, set) = match set {
                [b'!' | b'^', rest @ ..] => (true, rest),
                _ => (false, set),
            };
            // A bracket in first position belongs to the set.
            let end = 1 + set.iter().skip(1).position(|&byte| byte == b']')?;
            let mut is_in = false;
            let mut rest = &set[..end];
            while let [first, after @ ..] = rest {
                rest = after;
                if let [b'-', last, after @ ..] = rest {
                    is_in |= (*first..=*last).contains(&byte);
                    rest = after;
                } else {
                    is_in |= *first == byte;
                }
            }
            (is_in != is_not).then_some(1 + usize::from(is_not) + end + 1)
        }
        [own, ..] => (*own == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_fnmatch_does() {
        let check = |pattern: &str, name: &str, want: bool| {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), want, "{pattern} {name}");
        };
        check("model-?????-of-00002", "model-00001-of-00002", true);
        check("model-?????-of-00002", "model-0001-of-00002", false);
        check("*", "", true);
        check("m*l*", "model-1", true);
        check("m*l", "model-1", false);
        check("a*b*c", "aXbXbXc", true);
        check("p-[01]x", "p-1x", true);
        check("p-[!01]x", "p-1x", false);
        check("p-[a-c]", "p-b", true);
        check("p-[]-]", "p-]", true);
        check("[", "[", false);
        check("a\\*", "a*", true);
        check("a\\*", "ab", false);
        check("", "a", false);
        check(&"*a".repeat(40), &"a".repeat(39), false);
    }
}
