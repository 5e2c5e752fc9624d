//! Errors of the operating system in messages: words and a remedy in place of their number.

use std::borrow::Cow;

use rustix::io::Errno;

/// The text that std appends to the words of an error, up to the number.
const NUMBER: &str = " (os error ";

/// The remedies, by the errors. Errors of the network have none: the conclusions on peers state theirs.
const REMEDIES: [(Errno, &str); 17] = [
    (Errno::NOENT, "check the spelling, and the folder"),
    (Errno::ACCESS, "`ls -ld` shows its owner and mode"),
    (Errno::PERM, "its owner or the administrator may"),
    (Errno::EXIST, "choose another name, or remove it"),
    (Errno::NOTDIR, "a part of the path is a file"),
    (Errno::ISDIR, "name a file"),
    (Errno::NOSPC, "`df -h` shows the space that is left"),
    (Errno::DQUOT, "`quota` shows the limit of this user"),
    (Errno::FBIG, "`ulimit -f` shows the limit of a file's size"),
    (Errno::ROFS, "choose a folder that can be written"),
    (Errno::NAMETOOLONG, "choose a shorter one"),
    (Errno::LOOP, "`namei -l` shows the links"),
    (Errno::MFILE, "`ulimit -n` shows the limit of this process"),
    (Errno::NFILE, "the limit of the whole machine; close programs"),
    (Errno::IO, "the disk or the network file system fails; `dmesg` shows more"),
    (Errno::ADDRINUSE, "`ss -ltnp` shows the program that has it; choose another port, or 0 for a free one"),
    (Errno::ADDRNOTAVAIL, "`ip address` shows the addresses of this machine"),
];

/// The text with the remedy of each error of the operating system in place of its number.
pub(super) fn in_words(text: &str) -> Cow<'_, str> {
    if !text.contains(NUMBER) {
        return text.into();
    }
    let (mut words, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once(NUMBER) {
        words.push_str(before);
        match after.split_once(')').and_then(|(number, after)| Some((number.parse::<i32>().ok()?, after))) {
            Some((number, after)) => {
                let remedy = REMEDIES.iter().find(|(errno, _)| errno.raw_os_error() == number);
                words.extend(remedy.map(|(_, remedy)| format!(" ({remedy})")));
                rest = after;
            }
            // Somebody's own words.
            None => {
                words.push_str(NUMBER);
                rest = after;
            }
        }
    }
    words.push_str(rest);
    words.into()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_number_becomes_a_remedy() {
        let of = |number: i32| io::Error::from_raw_os_error(number).to_string();
        let check = |text: String, want: &str| assert_eq!(in_words(&text), want);
        check(format!("/a/b: {}", of(2)), "/a/b: No such file or directory (check the spelling, and the folder)");
        check(
            format!("a: {}; b: {}.", of(13), of(28)),
            "a: Permission denied (`ls -ld` shows its owner and mode); b: No space left on device (`df -h` shows the space \
             that is left).",
        );
        // An error without a remedy keeps its words alone.
        check(format!("10.0.0.7:1: {}", of(111)), "10.0.0.7:1: Connection refused");
        for own in ["no number", "a file named x (os error y)", "cut (os error 2"] {
            check(own.to_owned(), own);
        }
    }
}
