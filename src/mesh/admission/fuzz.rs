//! The proof of the mesh key, with bytes for the other side, for [`crate::fuzz`].

use std::sync::LazyLock;

use futures::FutureExt;
use libp2p::identity::Keypair;

use super::{ANSWER_BYTES, DIALLER, ERRAND_BYTES, Gate, LISTENER, PROOF_BYTES, ProofInput, Purpose};
use crate::mesh::{Admission, MeshKey, Speaks};

/// Bits of the first byte. If this one is not set, the fuzzer is the dialler.
const LISTENS: u8 = 1;
/// This side runs open, without a key.
const OPEN: u8 = 2;
/// The fuzzer has the key: its first bytes are replaced with the true proof.
const PROVES: u8 = 4;

static GATES: LazyLock<[Gate; 2]> = LazyLock::new(|| {
    [Admission::Key(MeshKey::from_bytes([1; 32])), Admission::Open].map(|admission| {
        let identity = Keypair::ed25519_from_bytes([7; 32]).expect("32 bytes are a key");
        Gate::new(identity.public().to_peer_id(), "lab", admission, Speaks::own())
    })
});

/// The shared input of the proofs on one connection, which is always the same in this module.
fn input(gate: &Gate) -> ProofInput {
    let other = Keypair::ed25519_from_bytes([8; 32]).expect("32 bytes are a key").public().to_peer_id();
    ProofInput { dialler: other, listener: gate.me, binding: [3; 32] }
}

/// One handshake, in which the other side sends `bytes` and hangs up. Returns whether it was admitted.
///
/// # Panics
/// If the other side is admitted without the key, or receives more than it should.
pub fn handshake(bytes: &[u8]) -> bool {
    let Some((&how, said)) = bytes.split_first() else { return false };
    let gate = &GATES[usize::from(how & OPEN != 0)];
    let input = input(gate);
    let role = if how & LISTENS == 0 { DIALLER } else { LISTENER };
    let proof = input.proof(&gate.key(), role);
    let mut said = said.to_vec();
    if how & PROVES != 0 && said.len() >= PROOF_BYTES {
        said[..PROOF_BYTES].copy_from_slice(&proof);
    }
    let has_proven = said.starts_with(&proof);
    let mut heard = Vec::new();
    let mut stream = tokio::io::join(said.as_slice(), &mut heard);
    let (admitted, most) = if how & LISTENS == 0 {
        let admitted = gate.prove_second(&mut stream, &input).now_or_never().expect("nothing is waited for");
        // An open mesh answers every peer that sends as many bytes as a proof has.
        let is_answered = has_proven || how & OPEN != 0;
        (admitted.is_ok(), if is_answered { ANSWER_BYTES } else { 0 })
    } else {
        let first = gate.prove_first(&mut stream, &input, Purpose::Control);
        let admitted = first.now_or_never().expect("nothing is waited for");
        (admitted.is_ok(), if has_proven { PROOF_BYTES + ERRAND_BYTES } else { PROOF_BYTES })
    };
    assert!(heard.len() <= most, "it heard {} bytes, which are {most} at most", heard.len());
    assert!(has_proven || !admitted, "let in without a proof");
    admitted
}

/// The messages of both sides if each admits the other, as `(name, bytes)`.
#[cfg(test)]
pub fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let [keyed, open] = &*GATES;
    let blank = [0; PROOF_BYTES];
    let dialler = |gate: &Gate, purpose: Purpose| [&blank[..], &gate.card(), &[purpose as u8]].concat();
    let listener = |gate: &Gate| [&blank[..], &gate.card()].concat();
    let case = |how: u8, said: Vec<u8>| [&[how][..], &said].concat();
    vec![
        ("dialler", case(PROVES, dialler(keyed, Purpose::Control))),
        ("dialler_for_bulk", case(PROVES, dialler(keyed, Purpose::Receive))),
        ("dialler_open", case(PROVES | OPEN, dialler(open, Purpose::Send))),
        ("listener", case(PROVES | LISTENS, listener(keyed))),
        ("listener_open", case(PROVES | LISTENS | OPEN, listener(open))),
    ]
}
