//! Whatever a peer sends as the state of a resource, loading it fails or gives a resource that can be saved again.

use meshtf_tensor::memory::Budget;

use super::*;

/// Most bytes that loading a wrong state may ask for at once.
const MEMORY: usize = 64 << 20;
/// The version at the limits of both numbers.
const LAST: Edition = Edition { number: u64::MAX, mark: u64::MAX };

/// Loads it into a table without resources, where it is saved again if it was taken.
fn load(key: &ResourceKey, saved: &Saved) {
    let resources = Resources::new();
    let loaded = Budget::of(MEMORY).run(|| resources.load(key, SessionId(7), saved));
    match loaded {
        Ok(()) => drop(resources.save(key).unwrap()),
        Err(failure) => {
            let expected = [Code::InvalidArgument, Code::ResourceExhausted];
            assert!(expected.contains(&failure.code), "{}: {failure}", saved.kind);
            assert_eq!(resources.count(), 0, "a failure makes nothing");
        }
    }
}

#[test]
fn a_malformed_state_is_refused() {
    for case in cases().iter().filter(|case| !case.fill.is_empty()) {
        let (cluster, _) = case.filled();
        let key = key(&cluster.resources[0], case.kind);
        let saved = cluster.resources[0].save(&key).unwrap();
        for length in 0..saved.form.len() {
            let form = saved.form[..length].to_vec();
            let failure = Resources::new().load(&key, SessionId(7), &Saved { form, ..saved.clone() }).unwrap_err();
            assert_eq!(failure.code, Code::InvalidArgument, "{} cut at {length}: {failure}", case.kind);
        }
        let longer = Saved { form: [&saved.form[..], &[0]].concat(), ..saved.clone() };
        assert!(Resources::new().load(&key, SessionId(7), &longer).unwrap_err().message.contains("bytes follow"));
        // Every byte of the form, with other bits and at its limits.
        for at in 0..saved.form.len() {
            for byte in [saved.form[at] ^ 1, saved.form[at] ^ 0x80, saved.form[at].wrapping_add(1), 0, 0x7f, 0xff] {
                let mut form = saved.form.clone();
                form[at] = byte;
                load(&key, &Saved { form, ..saved.clone() });
            }
        }
        let other = [tensor("1"), tensor("1.5,2.5"), Tensor::scalar(Vec::<u8>::new()), Tensor::vector(vec![7i64; 3])];
        for at in 0..saved.tensors.len() {
            let mut fewer = saved.clone();
            fewer.tensors.remove(at);
            load(&key, &fewer);
            for other in &other {
                let mut wrong = saved.clone();
                wrong.tensors[at] = other.clone();
                load(&key, &wrong);
                wrong.tensors.insert(at, saved.tensors[at].clone());
                load(&key, &wrong);
            }
        }
        load(&key, &Saved { version: LAST, ..saved.clone() });
        for kind in super::super::super::resource::lasting_kinds().into_iter().filter(|kind| *kind != case.kind) {
            load(&key, &Saved { kind: kind.to_owned(), ..saved.clone() });
        }
    }
}

#[test]
fn a_version_at_its_limit_is_changed_all_the_same() {
    let case = &cases()[0];
    let (mut cluster, graph) = case.filled();
    let resources = Arc::clone(&cluster.resources[0]);
    let key = key(&resources, case.kind);
    let last = Saved { version: LAST, ..resources.save(&key).unwrap() };
    resources.clear("");
    resources.load(&key, cluster.session, &last).unwrap();
    assert_eq!(resources.version(&key), Some(LAST));
    cluster.check(&graph, &[], &[("^add", "")]);
    assert_eq!(resources.version(&key).map(|version| version.number), Some(0));
}
