//! Reads Rust source as text: what of a file is code, which of that is there for tests alone, and which paths it names.

use std::ops::Range;

/// The source with everything blanked out that names nothing: comments, strings, and the items that `#[cfg(test)]` marks.
/// What is left keeps its place, so that its line is known.
#[derive(Default)]
pub struct Code {
    text: Vec<char>,
    /// The same with the items for tests.
    with_tests: Vec<char>,
    /// What `use` brings in, each with its whole path as it is written.
    used: Vec<Named>,
    /// The paths below the file's own module from which `use` takes something, as `["op", "OpDef"]`.
    pub from_below: Vec<Vec<String>>,
    /// The names that `pub use` hands on.
    pub published: Vec<String>,
    /// Modules within the file: their names, and where they are.
    modules: Vec<(String, Range<usize>)>,
    /// Modules in files of their own that are for tests alone, and where each says that its file is.
    pub test_files: Vec<(String, Option<String>)>,
}

/// A path that code names, from the root of the crate on.
#[derive(Debug, PartialEq)]
pub struct Named {
    pub line: usize,
    pub path: Vec<String>,
}

impl Code {
    pub fn of(source: &str) -> Code {
        let original: Vec<char> = source.chars().collect();
        let mut code = Code { text: original.clone(), ..Code::default() };
        code.blank_comments_and_strings();
        code.with_tests.clone_from(&code.text);
        code.blank_tests(&original);
        code.find_modules();
        code.find_used();
        code
    }

    /// The same source with the items for tests, too.
    pub fn with_tests(&self) -> Code {
        let mut code = Code { text: self.with_tests.clone(), ..Code::default() };
        code.find_used();
        code
    }

    /// The lines of code, numbered from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, String)> {
        let lines: Vec<String> = self.text.split(|&c| c == '\n').map(|line| line.iter().collect()).collect();
        lines.into_iter().enumerate().map(|(i, line)| (i + 1, line))
    }

    /// Whether a line is of a module within the file.
    pub fn is_within(&self, module: &str, line: usize) -> bool {
        let line_of = |at: usize| 1 + self.text[..at].iter().filter(|&&c| c == '\n').count();
        let mut ranges = self.modules.iter().filter(|(name, _)| name == module);
        ranges.any(|(_, range)| (line_of(range.start)..=line_of(range.end)).contains(&line))
    }

    /// Where code names the crate or path `name` (`tokio`, `std::fs`): in a path that begins with it, or in a `use`.
    pub fn naming(&self, name: &str) -> Vec<usize> {
        let mut lines: Vec<usize> =
            self.lines().filter(|(_, line)| begins_a_path(line, name)).map(|(number, _)| number).collect();
        let wanted: Vec<&str> = name.split("::").collect();
        for used in &self.used {
            // `use std::*` and `use std as s` may name anything below it.
            let is_named = used.path.iter().zip(&wanted).all(|(a, b)| a == b) && !used.path.is_empty();
            if is_named && !lines.contains(&used.line) {
                lines.push(used.line);
            }
        }
        lines
    }

    fn find_used(&mut self) {
        let (mut used, mut from_below, mut published) = (Vec::new(), Vec::new(), Vec::new());
        let mut from = 0;
        while let Some(at) = self.find(from, "use") {
            from = at + 3;
            let is_whole =
                (at == 0 || !self.is_word(at - 1)) && !self.is_word(from) && self.text.get(from) != Some(&'<');
            if !is_whole {
                continue;
            }
            let line = 1 + self.text[..at].iter().filter(|&&c| c == '\n').count();
            let end = self.find(from, ";").unwrap_or(self.text.len());
            let is_public = at >= 4 && self.starts_with(at - 4, "pub ");
            // A tree that begins with `::` or a brace begins with what follows that.
            while from < end {
                if self.is_word(from) {
                    let is_below = !["crate::", "super::"].iter().any(|start| self.starts_with(from, start));
                    let next = self.read_path(from, &[], Vec::new(), &mut |path| {
                        published.extend(path.last().filter(|_| is_public).cloned());
                        from_below.extend(is_below.then(|| path.clone()));
                        used.push(Named { line, path });
                    });
                    // A name after `as` is not a path.
                    from = (next.max(from + 1)..end).find(|&i| self.text[i] == ',').unwrap_or(end);
                } else {
                    from += 1;
                }
            }
        }
        (self.used, self.from_below, self.published) = (used, from_below, published);
    }

    fn blank(&mut self, range: Range<usize>) {
        self.text[range].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = ' ');
    }

    fn starts_with(&self, at: usize, what: &str) -> bool {
        what.chars().enumerate().all(|(i, c)| self.text.get(at + i) == Some(&c))
    }

    fn find(&self, from: usize, what: &str) -> Option<usize> {
        (from..self.text.len()).find(|&at| self.starts_with(at, what))
    }

    fn is_word(&self, at: usize) -> bool {
        self.text.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_')
    }

    fn blank_comments_and_strings(&mut self) {
        let mut at = 0;
        while at < self.text.len() {
            let end = match self.text[at] {
                '/' if self.starts_with(at, "//") => self.find(at, "\n").unwrap_or(self.text.len()),
                '/' if self.starts_with(at, "/*") => self.end_of_comment(at),
                '"' => self.end_of_string(at + 1),
                'r' if at == 0 || !self.is_word(at - 1) || self.text[at - 1] == 'b' => match self.end_of_raw_string(at)
                {
                    Some(end) => end,
                    None => at,
                },
                '\'' => self.end_of_char(at),
                _ => at,
            };
            if end > at {
                self.blank(at..end.min(self.text.len()));
            }
            at = end.max(at + 1);
        }
    }

    fn end_of_comment(&self, at: usize) -> usize {
        let (mut depth, mut at) = (1, at + 2);
        while depth > 0 && at < self.text.len() {
            match (self.starts_with(at, "/*"), self.starts_with(at, "*/")) {
                (true, _) => (depth, at) = (depth + 1, at + 2),
                (_, true) => (depth, at) = (depth - 1, at + 2),
                _ => at += 1,
            }
        }
        at
    }

    fn end_of_string(&self, mut at: usize) -> usize {
        while at < self.text.len() {
            match self.text[at] {
                '\\' => at += 2,
                '"' => return at + 1,
                _ => at += 1,
            }
        }
        at
    }

    fn end_of_raw_string(&self, at: usize) -> Option<usize> {
        let hashes = self.text[at + 1..].iter().take_while(|&&c| c == '#').count();
        let quote = at + 1 + hashes;
        if self.text.get(quote) != Some(&'"') {
            return None;
        }
        let end = format!("\"{}", "#".repeat(hashes));
        Some(self.find(quote + 1, &end)? + end.len())
    }

    /// The end of a character; `at` for a lifetime.
    fn end_of_char(&self, at: usize) -> usize {
        match (self.text.get(at + 1), self.text.get(at + 2)) {
            (Some('\\'), Some(_)) => self.find(at + 3, "'").map_or(at, |end| end + 1),
            (Some(_), Some('\'')) => at + 3,
            _ => at,
        }
    }

    fn blank_tests(&mut self, original: &[char]) {
        let mut from = 0;
        while let Some(at) = self.find(from, "#[cfg(") {
            let arguments = self.closing(at + 5);
            let predicate: String = self.text[at + 6..arguments].iter().collect();
            from = at + 1;
            if !is_for_tests(&predicate) {
                continue;
            }
            let end = self.end_of_item(self.closing(at + 1) + 1);
            let item: String = self.text[at..end].iter().collect();
            if let Some(name) = item.split_once("mod ").and_then(|(_, rest)| rest.strip_suffix(';')) {
                let item: String = original[at..end].iter().collect();
                let place = item.split_once("#[path = \"").and_then(|(_, rest)| rest.split_once('"'));
                self.test_files.push((name.to_owned(), place.map(|(place, _)| place.to_owned())));
            }
            self.blank(at..end);
        }
    }

    /// Where the bracket closes that opens at `open`.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open..self.text.len() {
            match self.text[at] {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.text.len() - 1
    }

    /// The end of what an attribute marks: an item, a statement, a field or an arm of a match.
    fn end_of_item(&self, from: usize) -> usize {
        let mut at = from;
        while at < self.text.len() && (self.text[at].is_whitespace() || self.text[at] == '#') {
            at = if self.text[at] == '#' { self.closing(at + 1) + 1 } else { at + 1 };
        }
        let head: String = self.text[at..].iter().take_while(|c| !"{;=".contains(**c)).collect();
        let head: Vec<&str> = head.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        // A brace ends most items, but is only a part of these.
        let ends_with_semicolon =
            match head.iter().find(|word| !matches!(**word, "pub" | "crate" | "super" | "in" | "")) {
                Some(&"const") => !head.contains(&"fn"),
                Some(word) => matches!(*word, "use" | "let" | "static" | "type"),
                None => false,
            };
        const ITEMS: &[&str] = &[
            "fn",
            "struct",
            "enum",
            "union",
            "trait",
            "impl",
            "mod",
            "macro_rules",
            "thread_local",
            "extern",
            "unsafe",
        ];
        let is_item = ends_with_semicolon || head.iter().any(|word| ITEMS.contains(word));
        // Commas between < and > end nothing; a comparison has spaces around it.
        let mut angles = 0usize;
        while at < self.text.len() {
            match self.text[at] {
                ';' => return at + 1,
                ',' if !is_item && angles == 0 => return at + 1,
                ')' | ']' | '}' => return at,
                '<' if at > 0 && (self.is_word(at - 1) || self.text[at - 1] == ':') => angles += 1,
                '>' if at > 0 && !"-= ".contains(self.text[at - 1]) => angles = angles.saturating_sub(1),
                '{' if !ends_with_semicolon => return self.closing(at) + 1,
                '(' | '[' | '{' => at = self.closing(at),
                _ => {}
            }
            at += 1;
        }
        at
    }

    fn find_modules(&mut self) {
        let mut from = 0;
        while let Some(at) = self.find(from, "mod ") {
            from = at + 4;
            let name: String = self.text[from..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
            let open = from + name.len() + 1;
            if (at == 0 || !self.is_word(at - 1)) && self.text.get(open) == Some(&'{') {
                self.modules.push((name, open..self.closing(open)));
            }
        }
    }

    /// The paths of this crate that the code names, where the file is the module `module`.
    pub fn paths(&self, module: &[String]) -> Vec<Named> {
        let mut named = Vec::new();
        let mut at = 0;
        while at < self.text.len() {
            let starts = (at == 0 || !self.is_word(at - 1) && self.text[at - 1] != ':' && self.text[at - 1] != '$')
                && ["crate::", "super::", "self::"].iter().any(|start| self.starts_with(at, start));
            // `pub(in crate::exec)` says who may see something; it takes nothing from there.
            let is_visibility = at > 3 && self.starts_with(at - 3, "in ") && !self.is_word(at - 4);
            if starts && !is_visibility {
                let line = 1 + self.text[..at].iter().filter(|&&c| c == '\n').count();
                let within = self.modules.iter().filter(|(_, range)| range.contains(&at));
                let mut here: Vec<String> = module.to_vec();
                here.extend(within.map(|(name, _)| name.clone()));
                at = self.read_path(at, &here, Vec::new(), &mut |path| named.push(Named { line, path }));
            } else {
                at += 1;
            }
        }
        named
    }

    /// Reads a path, or a tree of paths; answers where it ends.
    fn read_path(&self, at: usize, here: &[String], before: Vec<String>, found: &mut dyn FnMut(Vec<String>)) -> usize {
        let (mut at, mut path, mut is_first) = (at, before, true);
        loop {
            let word: String = self.text[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
            at += word.len();
            match (word.as_str(), is_first && path.is_empty()) {
                ("crate", true) => {}
                ("self", true) => path = here.to_vec(),
                ("super", true) => path = here[..here.len().saturating_sub(1)].to_vec(),
                ("super", false) => {
                    path.pop();
                }
                ("self" | "", _) => {}
                _ => path.push(word),
            }
            is_first = false;
            if !self.starts_with(at, "::") {
                found(path);
                return at;
            }
            at += 2;
            match self.text.get(at) {
                Some('{') => {
                    let end = self.closing(at);
                    at += 1;
                    while at < end {
                        let c = self.text[at];
                        at = if c.is_alphanumeric() || c == '_' || c == '*' {
                            let next = self.read_path(at, here, path.clone(), found).max(at + 1);
                            // A name after `as` is not a path.
                            (next..=end).find(|&i| matches!(self.text[i], ',' | '}')).unwrap_or(end)
                        } else {
                            at + 1
                        };
                    }
                    return end + 1;
                }
                Some(c) if c.is_alphanumeric() || *c == '_' => {}
                _ => {
                    found(path);
                    return at;
                }
            }
        }
    }
}

/// Whether a path in a line begins with the crate or path `name`, and not with something that merely contains it.
fn begins_a_path(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].strip_suffix("::").unwrap_or(&line[..at]).chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_:>".contains(c)) && line[at + name.len()..].starts_with("::")
    })
}

/// Whether a condition holds in tests alone: `test`, `all(test, unix)`, but not `any(test, feature = "fuzzing")`.
fn is_for_tests(predicate: &str) -> bool {
    let predicate = predicate.trim();
    let all = predicate.strip_prefix("all(").and_then(|rest| rest.strip_suffix(')'));
    predicate == "test" || all.is_some_and(|all| all.split(',').any(|part| part.trim() == "test"))
}

#[test]
fn what_is_marked_for_tests_is_left_out_and_no_more() {
    let check = |source: &str, left: &str| {
        let text: String = Code::of(source).text.into_iter().collect();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(left), "{source}");
    };
    check("fn a() {} #[cfg(test)] mod tests { fn b() { if x { y } } } fn c() {}", "fn a() {} fn c() {}");
    check("#[cfg(test)] mod tests; fn c() {}", "fn c() {}");
    check("#[cfg(test)]\n#[path = \"a.rs\"]\npub(crate) mod tests;\nfn c() {}", "fn c() {}");
    check("#[cfg(test)] pub fn a<A, B>(x: (A, B)) -> B where A: C { x } fn c() {}", "fn c() {}");
    check("#[cfg(test)] const fn a() {} fn c() {}", "fn c() {}");
    check("#[cfg(test)] impl<T> A<T> for B { fn b() {} } fn c() {}", "fn c() {}");
    check("#[cfg(test)] use a::{b, c}; use d;", "use d;");
    check("#[cfg(test)] const A: [u8; 2] = [{ 1 }, 2]; use d;", "use d;");
    check("#[cfg(test)] thread_local! { static A: B = C; } use d;", "use d;");
    check("struct A { #[cfg(test)] a: Map<B, C>, d: E }", "struct A { d: E }");
    check("struct A { d: E, #[cfg(test)] a: B }", "struct A { d: E, }");
    check("A { #[cfg(test)] a: b < c, d }", "A { d }");
    check("match x { #[cfg(test)] A(b) => c, D => e }", "match x { D => e }");
    check("match x { #[cfg(test)] A(b) => { c } D => e }", "match x { D => e }");
    check("{ #[cfg(test)] if let Some(a) = b { return c; } d }", "{ d }");
    check("{ #[cfg(test)] A.set(A.get() + 1); d }", "{ d }");
    check("#[cfg(all(test, unix))] fn a() {} fn c() {}", "fn c() {}");
    let kept = "#[cfg(any(test, feature = ))] fn a() {}";
    check("#[cfg(any(test, feature = \"fuzzing\"))] fn a() {}", kept);
    check("#[cfg(not(test))] fn a() {}", "#[cfg(not(test))] fn a() {}");
    check("a // b\n/* c /* d */ e */ f \"#[cfg(test)] \\\" {\" g r#\"h \" i\"# 'j' '\\'' k 'l: m", "a f g k 'l: m");
    check("// #[cfg(test)]\nfn a() {}", "fn a() {}");
}

#[test]
fn files_for_tests_alone_are_known() {
    let source =
        "#[cfg(test)]\nmod tests;\n#[cfg(test)]\n#[path = \"../x.rs\"]\npub mod x;\nmod y;\n#[cfg(test)]\nmod z { }";
    let expected = [("tests".to_owned(), None), ("x".to_owned(), Some("../x.rs".to_owned()))];
    assert_eq!(Code::of(source).test_files, expected);
}

#[test]
fn paths_are_read_with_all_their_branches() {
    let check = |source: &str, expected: &[(usize, &str)]| {
        let module = ["exec".to_owned(), "step".to_owned()];
        let named: Vec<(usize, String)> =
            Code::of(source).paths(&module).into_iter().map(|named| (named.line, named.path.join("::"))).collect();
        let expected: Vec<(usize, String)> = expected.iter().map(|(line, path)| (*line, path.to_string())).collect();
        assert_eq!(named, expected, "{source}");
    };
    check("use crate::graph::{Node, Attr};", &[(1, "graph::Node"), (1, "graph::Attr")]);
    check("use crate::{\n  plan::{Task, Plan as P},\n  graph};", &[(1, "plan::Task"), (1, "plan::Plan"), (1, "graph")]);
    check("\nfn f(x: crate::tensor::Tensor) -> mycrate::x::y { }", &[(2, "tensor::Tensor")]);
    check("use super::mailbox::{self, Inbox};", &[(1, "exec::mailbox"), (1, "exec::mailbox::Inbox")]);
    check("use super::super::ids::Id; use self::a::b;", &[(1, "ids::Id"), (1, "exec::step::a::b")]);
    check("mod a { use super::b; } use super::*;", &[(1, "exec::step::b"), (1, "exec")]);
    check("pub(in crate::exec) fn begin(x: crate::a::B) {}", &[(1, "a::B")]);
    check("#[cfg(test)] mod tests { use crate::a; } // crate::b\n\"crate::c\"", &[]);
}

#[test]
fn a_crate_is_known_by_its_whole_name() {
    let check = |source: &str, name: &str, lines: &[usize]| {
        assert_eq!(Code::of(source).naming(name), lines, "{name} in {source}");
    };
    check("use tokio::sync;", "tokio", &[1]);
    check("let now = std::time::Instant::now();", "std::time", &[1]);
    check("\n::std::fs::read(path)", "std::fs", &[2]);
    check("use std::fs;", "std::fs", &[1]);
    check("\nuse std::{\n    fs,\n    io,\n};", "std::fs", &[2]);
    check("use std::{io::{self, Read}, fs::File};", "std::fs", &[1]);
    check("pub(crate) use ::std::thread;", "std::thread", &[1]);
    check("use std as s; use std::*;", "std::env", &[1]);
    check("use tokio as t;", "tokio", &[1]);
    check("use {a::b as c, tokio};", "tokio", &[1]);
    check("let tokio_like = my_tokio::x; a::tokio::x; because();", "tokio", &[]);
    check("let tokio = 1; use a::{b as tokio, std::fs}; reuse(std);", "tokio", &[]);
    check("use a::{b, std::fs}; use std::io::Write as fs; T::std::fs::x;", "std::fs", &[]);
    check("// use std::fs;\n#[cfg(test)]\nmod tests { use std::fs; }", "std::fs", &[]);
}
