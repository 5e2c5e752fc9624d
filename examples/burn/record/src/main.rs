//! Records the answers of burn's flex backend to single operations, as cases for the tests of meshtf's lowering.
//!
//! `record` writes `tests/data/burn/*.json`, lists with one case per line. `record --check` prints the recorded cases whose
//! answers have changed. A further argument names another folder.

mod activation;
mod base;
mod case;
mod conv;
mod float;
mod integer;
mod json;
mod module;
mod numeric;
mod pool;
mod signal;

use std::path::PathBuf;
use std::process::ExitCode;

use case::Cases;

type Fill = fn(&mut Cases);

const FILES: [(&str, Fill); 10] = [
    ("base", base::fill),
    ("numeric", numeric::fill),
    ("float", float::fill),
    ("int", integer::fill_int),
    ("bool", integer::fill_bool),
    ("activation", activation::fill),
    ("module", module::fill),
    ("conv", conv::fill),
    ("pool", pool::fill),
    ("signal", signal::fill),
];

fn main() -> ExitCode {
    let mut check = false;
    let mut folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data/burn");
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--check" => check = true,
            path => folder = PathBuf::from(path),
        }
    }
    // An operation that a backend lacks panics; these are listed below.
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = 0;
    for (file, fill) in FILES {
        let path = folder.join(file).with_extension("json");
        let mut cases = Cases::default();
        fill(&mut cases);
        for (refused, times) in &cases.refused {
            println!("{file}: flex does not answer {refused} ({times} cases)");
        }
        let text = json::list(&cases.recorded);
        if !check {
            if let Err(e) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, &text)) {
                eprintln!("{}: {e}", path.display());
                return ExitCode::FAILURE;
            }
            println!("{file}: {} cases, {} bytes", cases.recorded.len(), text.len());
            continue;
        }
        match std::fs::read_to_string(&path).map_err(|e| e.to_string()).and_then(|old| json::differences(&old, &text)) {
            Ok(differences) => {
                wrong += differences.len();
                println!("{file}: {} cases, {} differ", cases.recorded.len(), differences.len());
                differences.iter().for_each(|d| println!("  {d}"));
            }
            Err(e) => {
                wrong += 1;
                println!("{}: {e}", path.display());
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
