//! Texts as numbers: from memory and from large files, in windows and one by one.

use meshtf_train::data::{Coder, Counter, TextOptions, TokenKind, Window};

use super::*;

/// 60 words, of which the twentieth line is blank.
fn story() -> String {
    let line = |i: usize| if i == 19 { String::new() } else { format!("Word{} und Öl-{}", i % 7, i % 3) };
    format!("\u{feff}{}\r\n", (0..21).map(line).collect::<Vec<_>>().join("\r\n"))
}

fn options(tokens: TokenKind) -> TextOptions {
    TextOptions { tokens, ..TextOptions::default() }
}

/// The file in memory, as a large one, and unpacked from a large one.
fn opened(folder: &TempDir, text: &str) -> Vec<FileBytes> {
    write(folder, "x.txt", text.as_bytes());
    let open = |(name, held)| FileBytes::open(&folder.child(name), held).unwrap();
    let all: Vec<FileBytes> = [("x.txt", 1 << 20), ("x.txt", HELD), ("x.txt.gz", HELD)].map(open).to_vec();
    assert!(all[0].file().is_none() && all[1].file().is_some() && all[2].file().is_some());
    all
}

#[test]
fn windows_are_the_same_from_memory_and_from_large_files() {
    let folder = TempDir::new().unwrap();
    let text = story();
    let plain = text.strip_prefix('\u{feff}').unwrap().replace("\r\n", "\n");
    for kind in [TokenKind::Bytes, TokenKind::Characters, TokenKind::Words] {
        let options = options(kind);
        let tokens: Vec<String> = match kind {
            TokenKind::Bytes => plain.bytes().map(|byte| byte.to_string()).collect(),
            TokenKind::Characters => plain.chars().map(String::from).collect(),
            TokenKind::Words => plain.to_lowercase().replace('-', "").split_whitespace().map(str::to_owned).collect(),
        };
        for bytes in opened(&folder, &text) {
            let text = Arc::new(TokenText::index(bytes, &options).unwrap());
            assert_eq!(text.count(), tokens.len(), "{kind:?}");
            let mut counter = Counter::default();
            // All but the last token, which is seldom or unknown then.
            text.measure(tokens.len() - 1, &mut counter).unwrap();
            let coder = match kind {
                TokenKind::Bytes => Coder::new(&options, Vec::new()),
                _ => Coder::new(&options, counter.vocabulary(None).unwrap()),
            };
            let number = |token: &String| match kind {
                TokenKind::Bytes => token.parse().unwrap(),
                _ => coder.number(token).map_or(1, |number| number as i32),
            };
            let numbers: Vec<i32> = tokens.iter().map(number).collect();
            let window = Window { length: 4, ahead: None, is_range: false, stride: 3 };
            let starts = WindowStarts::of(tokens.len(), 4, 3, 0);
            assert_eq!(starts.count(), (tokens.len() - 4) / 3 + 1);
            let rows = |window: Window, starts: WindowStarts| {
                let (text, coder) = (Arc::clone(&text), coder.clone());
                let pieces = Box::new(TextWindows { text, coder, window, starts });
                let shape = if window.ahead.is_some() { vec![None] } else { vec![None, Some(4)] };
                FileRows::of("x.txt", None, pieces, &takes(DType::I32, &shape, None)).unwrap()
            };
            let last = starts.count() - 1;
            let wanted: Vec<i32> = [last, 0, 2].iter().flat_map(|&i| numbers[3 * i..3 * i + 4].to_vec()).collect();
            assert_eq!(rows(window, starts).read(&[last, 0, 2]).unwrap(), Tensor::from_vec([3, 4], wanted), "{kind:?}");
            // The second token after the window, where ten tokens are held out.
            let ahead = Window { ahead: Some((2, 2)), ..window };
            let starts = WindowStarts::of(tokens.len(), 6, 3, 10);
            assert_eq!((starts.trained, starts.held), ((tokens.len() - 16) / 3 + 1, 2));
            let border = tokens.len() - 10;
            let wanted = [numbers[3 + 5], numbers[border + 5], numbers[border + 3 + 5]];
            let taken = rows(ahead, starts).read(&[1, starts.trained, starts.trained + 1]).unwrap();
            assert_eq!(taken, Tensor::vector(wanted.to_vec()), "{kind:?}");
        }
    }
}

/// More tokens than are between two offsets, in one line and in many.
#[test]
fn every_token_of_a_long_text_is_found() {
    let folder = TempDir::new().unwrap();
    for separator in [" ", "\r\n", " \n\n"] {
        let words: Vec<String> = (0..1000).map(|i| format!("w{i}")).collect();
        for bytes in opened(&folder, &words.join(separator)) {
            let options = options(TokenKind::Words);
            let text = Arc::new(TokenText::index(bytes, &options).unwrap());
            let coder = Coder::new(&options, words.clone());
            let window = Window { length: 130, ahead: None, is_range: false, stride: 1 };
            let starts = WindowStarts::of(text.count(), 130, 1, 0);
            let pieces = TextWindows { text, coder, window, starts };
            for begin in [0, 1, 63, 64, 65, 127, 870] {
                let row: Vec<i32> = (begin..begin + 130).map(|word| word as i32 + 2).collect();
                assert_eq!(pieces.read(&[begin]).unwrap(), Tensor::from_vec([1, 130], row), "{begin}");
            }
        }
    }
}

#[test]
fn a_text_that_is_no_text_is_refused_with_its_line() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("x.txt"), b"a\nb\n\xff\n").unwrap();
    let bytes = FileBytes::open(&folder.child("x.txt"), 1 << 20).unwrap();
    let refused = TokenText::index(bytes, &options(TokenKind::Words)).unwrap_err();
    assert!(refused.starts_with("line 3 is not UTF-8"), "{refused}");
}

/// Lines of a large file as numbers are those of a small one, and their lengths are measured.
#[test]
fn each_text_is_cut_or_filled_up() {
    let folder = TempDir::new().unwrap();
    let lines: Vec<String> = (0..COUNT).map(|i| vec!["a"; i % 5].join(" ") + &format!(" w{}", i % 2)).collect();
    write(&folder, "x.txt", lines.join("\n").as_bytes());
    let options = options(TokenKind::Words);
    let large = DataFile::open(&folder.child("x.txt"), HELD).unwrap().unwrap();
    let held = Strings::Held(Tensor::vector(lines.iter().map(|line| line.clone().into_bytes()).collect()));
    let elsewhere =
        Strings::Elsewhere { pieces: Box::new(TextLines::index(&large).unwrap()), file: Some(large.clone()) };
    for texts in [held, elsewhere] {
        let mut counter = Counter::default();
        // Every other text is trained with: w1 does not occur there.
        let lengths = texts.measure(&options, Some(3), |place| place.is_multiple_of(2), Some(&mut counter)).unwrap();
        assert_eq!(lengths, Lengths { longest: 5, beyond: 16 });
        let coder = Coder::new(&options, counter.vocabulary(None).unwrap());
        let encoded = Encoded { texts, coder, length: 3 };
        let wanted = Tensor::from_vec([3, 3], vec![3, 0, 0, 2, 2, 2, 2, 1, 0]);
        assert_eq!(encoded.read(&[0, 4, 1]).unwrap(), wanted.clone());
        assert!(encoded.held(COUNT as u64).is_none());
        let all = encoded.held(MAX_HELD).map(|held| held.unwrap().dims().to_vec());
        assert!(all.is_none_or(|dims| dims == [COUNT, 3]));
    }
}
