//! Tokens and their numbers, as Keras's TextVectorization of TensorFlow 2.21 has them.

use super::*;

const TEXTS: [&str; 6] = [
    "The cat sat, the DOG ran!",
    "A dog -- a good dog: don't",
    "  cat\tand  dog;\nThe end. ",
    "",
    "...",
    "zebra apple mango the",
];

fn options(tokens: TokenKind, standardize: Option<&str>) -> TextOptions {
    let named = |name: &str| Standardize::NAMES.iter().find(|(own, _)| *own == name).map(|(_, one)| *one).unwrap();
    TextOptions { tokens, standardize: standardize.map(named), ..TextOptions::default() }
}

/// The conversion by the tokens of these texts.
fn adapted(options: &TextOptions, texts: &[&str], size: Option<usize>) -> Coder {
    let mut counter = Counter::default();
    texts.iter().for_each(|text| counter.add(options, text).unwrap());
    Coder::new(options, counter.vocabulary(size).unwrap())
}

fn rows(coder: &Coder, texts: &[&str], length: usize) -> Vec<Vec<i32>> {
    let row = |text: &&str| {
        let mut row = vec![7; length];
        coder.fill(text, &mut row);
        row
    };
    texts.iter().map(row).collect()
}

fn vocabulary(coder: &Coder) -> Vec<&str> {
    (FIRST..coder.size()).map(|number| coder.token(number).unwrap()).collect()
}

#[test]
fn words_have_the_numbers_of_keras() {
    let new = "the unknown cat's dog dog dog dog";
    let all = adapted(&options(TokenKind::Words, None), &TEXTS, None);
    let known =
        ["the", "dog", "cat", "a", "zebra", "sat", "ran", "mango", "good", "end", "dont", "apple", "and"].to_vec();
    assert_eq!(vocabulary(&all), known);
    let wanted = [[2, 4, 7, 2, 3, 8], [5, 3, 5, 10, 3, 12], [4, 14, 3, 2, 11, 0], [0; 6], [0; 6], [6, 13, 9, 2, 0, 0]];
    assert_eq!(rows(&all, &TEXTS, 6), wanted);
    assert_eq!(rows(&all, &[new], 6), [[2, 1, 1, 3, 3, 3]]);
    // `max_tokens`
    let some = adapted(&options(TokenKind::Words, None), &TEXTS, Some(6));
    assert_eq!(vocabulary(&some), ["the", "dog", "cat", "a"]);
    assert_eq!(rows(&some, &TEXTS[..2], 6), [[2, 4, 1, 2, 3, 1], [5, 3, 5, 1, 3, 1]]);
    // `standardize`
    let plain = adapted(&options(TokenKind::Words, Some("none")), &TEXTS, None);
    assert_eq!(rows(&plain, &TEXTS[..3], 6), [[4, 3, 6, 2, 18, 7], [19, 14, 21, 17, 9, 13], [3, 16, 12, 4, 10, 0]]);
    let lower = adapted(&options(TokenKind::Words, Some("lower")), &TEXTS, None);
    assert_eq!(rows(&lower, &TEXTS[1..3], 6), [[5, 3, 18, 5, 10, 14], [4, 16, 13, 2, 11, 0]]);
    let stripped = adapted(&options(TokenKind::Words, Some("strip_punctuation")), &TEXTS, Some(8));
    assert_eq!(vocabulary(&stripped), ["dog", "the", "cat", "The", "zebra", "sat"]);
    assert_eq!(rows(&stripped, &[TEXTS[0], new], 6), [[5, 4, 7, 3, 1, 1], [3, 1, 1, 2, 2, 2]]);
}

#[test]
fn characters_have_the_numbers_of_keras() {
    let coder = adapted(&options(TokenKind::Characters, None), &["héllo\nwörld", "hello!", "日本"], None);
    assert_eq!(vocabulary(&coder), ["l", "o", "h", "本", "日", "ö", "é", "w", "r", "e", "d", "!", "\n"]);
    assert_eq!(rows(&coder, &["hélo\n!?", "日本x"], 8), [[4, 8, 2, 3, 14, 13, 1, 0], [6, 5, 1, 0, 0, 0, 0, 0]]);
    let small = adapted(&options(TokenKind::Characters, Some("lower_and_strip_punctuation")), &["He, Llo!"], None);
    assert_eq!(vocabulary(&small), ["l", "o", "h", "e", " "]);
    assert_eq!(rows(&small, &["hE,lo!"], 8), [[4, 5, 2, 3, 0, 0, 0, 0]]);
    // The two bytes that end a line are one character, at the offset of the first.
    let mut found = Vec::new();
    options(TokenKind::Characters, None).split("a\r\nb\r", &mut |at, letter| {
        found.push((at, letter.to_owned()));
        true
    });
    let found: Vec<(usize, &str)> = found.iter().map(|(at, letter)| (*at, letter.as_str())).collect();
    assert_eq!(found, [(0, "a"), (1, "\n"), (3, "b"), (4, "\r")]);
}

/// Beyond Keras, which knows the letters and the punctuation of ASCII alone.
#[test]
fn letters_of_other_scripts_become_small_and_quotation_marks_are_removed() {
    let coder = adapted(&options(TokenKind::Words, None), &["«Ärger», “Ärger” – ΟΔΟΣ"], None);
    assert_eq!(vocabulary(&coder), ["ärger", "οδος"]);
}

#[test]
fn bytes_are_their_own_numbers() {
    let coder = Coder::new(&TextOptions::default(), Vec::new());
    assert_eq!(rows(&coder, &["é\r\nab", ""], 4), [[195, 169, 10, 97], [0; 4]]);
    assert_eq!((coder.size(), coder.token(97), coder.unknown("é")), (256, None, Vec::new()));
}

#[test]
fn vocabularies_are_listed_as_keras_lists_them() {
    let owned = |tokens: &[&str]| tokens.iter().map(|&token| token.to_owned()).collect::<Vec<_>>();
    let wanted = owned(&["dog", "cat"]);
    for tokens in [&["dog", "cat"][..], &["", "[UNK]", "dog", "cat"]] {
        assert_eq!(listed_vocabulary(owned(tokens)).unwrap(), wanted);
    }
    for text in ["dog\ncat\n", "\u{feff}\r\n[UNK]\r\ndog\r\ncat", "\n[UNK]\ndog\ncat\n"] {
        assert_eq!(vocabulary_of(text.as_bytes()).unwrap(), wanted, "{text:?}");
    }
    let coder = Coder::new(&options(TokenKind::Words, None), wanted);
    assert_eq!(rows(&coder, &["cat dog bird"], 4), [[3, 2, 1, 0]]);
    assert_eq!(coder.unknown("a cat, a bird"), ["a", "bird"]);
    for (tokens, why) in [
        (&["a", "b", "a"][..], "the vocabulary has \"a\" twice; the second is token 3"),
        (&["", "[UNK]", "a", ""], "token 4 of the vocabulary is empty"),
        (&[], "no token"),
    ] {
        assert!(listed_vocabulary(owned(tokens)).unwrap_err().message.contains(why), "{tokens:?}");
    }
    assert!(vocabulary_of(b"\xff").unwrap_err().message.contains("not UTF-8"));
    assert!(Counter::default().vocabulary(None).unwrap_err().message.contains("no token"));
}
