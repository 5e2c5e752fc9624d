//! Requirements of a test on its machine: network namespaces, a GPU, the recorded sessions outside the project, and so on. One
//! rule for all: if a requirement is not met, a test states on stderr that it did not run; with `CI` set it fails, unless
//! `MESHTF_TEST_MAY_SKIP` names the requirement.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The variable with the comma-separated names of the requirements that may be unmet although `CI` is set.
const MAY_SKIP: &str = "MESHTF_TEST_MAY_SKIP";

/// The least number of recorded sessions of the project; a smaller number is an error.
const LEAST_SESSIONS: usize = 44;

/// A requirement that not every machine meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    Namespaces,
    Packages,
    SocketKill,
    Proc,
    Gpu,
    Corpus,
    Cores,
    Terminal,
    Chromium,
    /// The TensorFlow that `make test-tf` runs. No test in Rust needs it.
    TensorFlow,
    /// TensorFlow 1.15, one of the clients of `make test-tf`.
    TensorFlow115,
    /// The programs that `make test-burn` runs. No test of this crate needs it.
    Burn,
    /// cargo-deny, by which `make check` examines the dependencies. No test in Rust needs it.
    CargoDeny,
    /// nbconvert and what the example notebooks import. No test in Rust needs it.
    Jupyter,
    /// Packages of Python that tests of its module need besides numpy, in `make test-python`. No test in Rust needs them.
    PythonPackages,
    /// PyTorch, whose modules `make test-python` converts. No test in Rust needs it.
    Torch,
}

impl Means {
    pub const ALL: &[Means] = &[
        Means::Namespaces,
        Means::Packages,
        Means::SocketKill,
        Means::Proc,
        Means::Gpu,
        Means::Corpus,
        Means::Cores,
        Means::Terminal,
        Means::Chromium,
        Means::TensorFlow,
        Means::TensorFlow115,
        Means::Burn,
        Means::CargoDeny,
        Means::Jupyter,
        Means::PythonPackages,
        Means::Torch,
    ];

    /// Its name in `MESHTF_TEST_MAY_SKIP`, and the text that describes its absence.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Means::Namespaces => ("netns", "`ip netns` makes no network namespace here (it takes root and iproute2)"),
            Means::Packages => (
                "packages",
                "no package can be installed beside this system (it takes root, overlay file systems, dpkg and python3)",
            ),
            Means::SocketKill => ("ss-kill", "`ss -K` ends no connection here (the kernel needs INET_DIAG_DESTROY)"),
            Means::Proc => ("proc", "there is no /proc that tells of a process"),
            Means::Gpu => ("gpu", "there is no GPU, not even Mesa's in software (`make setup` installs that)"),
            Means::Corpus => ("corpus", "there is no ../shared/corpus/tf with more recorded sessions"),
            Means::Cores => ("cores", "there is one processor, and kernels do not run beside each other"),
            Means::Terminal => ("terminal", "there is no `script` (of util-linux) that gives a program a terminal"),
            Means::Chromium => (
                "chromium",
                "there is no Chromium that starts, which draws the page of `meshtf node --web` (`make setup` installs it)",
            ),
            Means::TensorFlow => ("tensorflow", "there is no TensorFlow"),
            Means::TensorFlow115 => {
                ("tensorflow-1.15", "there is no TensorFlow 1.15 (`make tensorflow-1.15` installs it)")
            }
            Means::Burn => ("burn", "the programs with burn's own client are not built (`make burn-programs`)"),
            Means::CargoDeny => ("cargo-deny", "cargo-deny is not installed (`make cargo-deny` installs it)"),
            Means::Jupyter => ("jupyter", "there is no nbconvert that runs the notebooks (`make jupyter` installs it)"),
            Means::PythonPackages => (
                "python-packages",
                "there is no scikit-learn, pandas or pyarrow (PYTHON_EXTRA of `make test-python` installs them)",
            ),
            Means::Torch => {
                ("torch", "there is no PyTorch with onnx (PYTHON_EXTRA of `make test-python` installs them)")
            }
        }
    }

    pub fn name(self) -> &'static str {
        self.words().0
    }
}

/// Reports that `test`, or a part of it, does not run for lack of `means`.
///
/// # Panics
/// If `CI` is set and `MESHTF_TEST_MAY_SKIP` does not name it.
pub fn missing(means: Means, test: &str) {
    static SAID: Mutex<BTreeSet<(Means, String)>> = Mutex::new(BTreeSet::new());
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let said = match verdict(means, &variable("CI"), &variable(MAY_SKIP)) {
        Ok(said) => said,
        Err(why) => panic!("{test}: {why}"),
    };
    let is_new = SAID.lock().is_ok_and(|mut all| all.insert((means, test.to_owned())));
    if is_new {
        // Written directly to stderr: the test harness captures the output of tests that pass.
        let _ = std::io::stderr().write_all(format!("NOT RUN: {test}: {said}\n").as_bytes());
    }
}

/// The message for a test that may be skipped, or the error for one that may not.
fn verdict(means: Means, ci: &str, may_skip: &str) -> Result<&'static str, String> {
    let (name, lack) = means.words();
    let mut is_named = false;
    for word in may_skip.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if !Means::ALL.iter().any(|means| means.name() == word) {
            let all: Vec<&str> = Means::ALL.iter().map(|means| means.name()).collect();
            return Err(format!("{MAY_SKIP} names {word:?}; there are {}", all.join(", ")));
        }
        is_named |= word == name;
    }
    if is_named || matches!(ci, "" | "0" | "false") {
        return Ok(lack);
    }
    Err(format!("{lack}; with CI set this is a failure, unless {MAY_SKIP} names {name:?}"))
}

/// The folder of the project.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("it is a crate of the project")
}

/// The folders of the recorded sessions, in order: the project's own, and those of the corpus whose names differ.
pub fn recorded_sessions() -> Vec<PathBuf> {
    let root = root();
    let own = sessions_in(&root.join("tests/cases"));
    assert!(own.len() >= LEAST_SESSIONS, "tests/cases has {} recorded sessions", own.len());
    let corpus = root.join("../shared/corpus/tf");
    let mut all = Vec::new();
    if corpus.is_dir() {
        all = sessions_in(&corpus);
        assert!(!all.is_empty(), "{} has no recorded sessions", corpus.display());
    } else {
        missing(Means::Corpus, "the sessions of the corpus");
    }
    all.retain(|session| !own.iter().any(|own| own.file_name() == session.file_name()));
    all.extend(own);
    all.sort();
    all
}

fn sessions_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.is_dir())
        .collect()
}

#[test]
fn only_what_is_named_may_be_missing_in_ci() {
    let check = |means: Means, ci: &str, may_skip: &str, may: bool| {
        let verdict = verdict(means, ci, may_skip);
        assert_eq!(verdict.is_ok(), may, "{means:?} {ci:?} {may_skip:?}: {verdict:?}");
    };
    check(Means::Gpu, "", "", true);
    check(Means::Gpu, "0", "", true);
    check(Means::Gpu, "false", "", true);
    check(Means::Gpu, "true", "", false);
    check(Means::Gpu, "1", "gpu", true);
    check(Means::Gpu, "1", "netns, gpu", true);
    check(Means::Gpu, "1", "netns", false);
    check(Means::Namespaces, "1", "netns,gpu", true);
    check(Means::Namespaces, "1", "net", false);
    check(Means::Cores, "1", "burn,cores", true);
    check(Means::Burn, "1", "tensorflow", false);
    // An unknown name is an error even where everything may be skipped.
    check(Means::Gpu, "", "gpu,nets", false);

    let why = verdict(Means::Namespaces, "true", "gpu").unwrap_err();
    assert!(why.contains("ip netns") && why.contains("MESHTF_TEST_MAY_SKIP") && why.contains("\"netns\""), "{why}");
    let why = verdict(Means::Gpu, "", "gpus").unwrap_err();
    assert!(
        why.contains("\"gpus\"")
            && why.contains("netns, packages, ss-kill, proc, gpu, corpus, cores, terminal, chromium, tensorflow, tensorflow-1.15, burn"),
        "{why}"
    );
}
