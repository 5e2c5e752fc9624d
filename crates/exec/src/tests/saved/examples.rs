//! The examples of `fuzz/seeds/saved`: a state of every kind, in its present form.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/saved");
const AGGREGATOR: &str = "aggregator of statistics";

/// The state of the resource of each case, by the name of its file.
fn examples() -> BTreeMap<String, Vec<u8>> {
    let state = |cluster: &Cluster, kind| {
        let resources = &cluster.resources[0];
        let info = resources.after(None, 99).into_iter().find(|info| info.kind == kind)?;
        let mut saved = resources.save(&info.key).unwrap();
        // It differs from run to run.
        saved.version.mark = 0;
        Some(postcard::to_stdvec(&saved).unwrap())
    };
    let mut states: Vec<_> = cases()
        .iter()
        .filter_map(|case| {
            let state = || state(&case.filled().0, case.kind);
            // An iterator that draws its seed has another state each time.
            state().filter(|saved| Some(saved) == state().as_ref()).map(|saved| (case.kind, saved))
        })
        .collect();
    states.extend(state(&kinds::counting().0, AGGREGATOR).map(|saved| (AGGREGATOR, saved)));
    let mut examples = BTreeMap::new();
    for (kind, saved) in states {
        let number = examples.keys().filter(|name: &&String| name.starts_with(&file(kind))).count();
        examples.insert(format!("{}_{number}", file(kind)), saved);
    }
    examples
}

fn file(kind: &str) -> String {
    kind.replace(' ', "_")
}

/// `MESHTF_WRITE_SEEDS=1` writes them.
#[test]
fn examples_have_the_current_form() {
    let examples = examples();
    for kind in super::super::super::resource::lasting_kinds() {
        assert!(examples.contains_key(&format!("{}_0", file(kind))), "{kind} has no example");
    }
    for (name, bytes) in &examples {
        assert!(crate::fuzz::saved(bytes), "{name} is not loaded");
        let path = Path::new(FOLDER).join(name);
        if std::env::var_os("MESHTF_WRITE_SEEDS").is_some() {
            fs::create_dir_all(FOLDER).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        let found = fs::read(&path).unwrap_or_default();
        assert_eq!(&found, bytes, "{} is out of date: MESHTF_WRITE_SEEDS=1 writes it", path.display());
    }
}
