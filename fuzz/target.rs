//! Every target of `meshtf::fuzz`, each as a program of its own: the one that it is named after.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    meshtf::fuzz::run(env!("CARGO_BIN_NAME"), bytes);
});
