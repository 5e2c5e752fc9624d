//! The operations of burn, and those without a recording.

use serde::de::DeserializeOwned;

use burn_ir::{
    ActivationOperationIr, BaseOperationIr, BoolOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr,
    NumericOperationIr,
};

/// Operations without a recording, and why.
pub const UNRECORDED: &[(&str, &str)] = &[
    ("Float::Random", "its numbers differ by design"),
    ("NumericInt::IntRandom", "its numbers differ by design"),
    ("NumericFloat::IntRandom", "there is none: floats are drawn by Float::Random"),
    ("BaseBool::Cast", "burn's own interpreter does not run it: by hand"),
    ("BaseBool::GatherNd", "flex has none for bools: by hand"),
    ("BaseBool::ScatterNd", "flex has none for bools: by hand"),
    ("Module::CtcLossBackward", "flex has none, and lets autodiff do it: all paths are counted instead"),
];

/// The names of all operations that compute, as failures have them.
pub fn variants() -> Vec<String> {
    let kinds: [(&str, Vec<String>); 9] = [
        ("BaseFloat", of::<BaseOperationIr>()),
        ("BaseInt", of::<BaseOperationIr>()),
        ("BaseBool", of::<BaseOperationIr>()),
        ("NumericFloat", of::<NumericOperationIr>()),
        ("NumericInt", of::<NumericOperationIr>()),
        ("Float", of::<FloatOperationIr>()),
        ("Int", of::<IntOperationIr>()),
        ("Bool", of::<BoolOperationIr>()),
        ("Activation", of::<ActivationOperationIr>()),
    ];
    let module = of::<ModuleOperationIr>().into_iter().map(|variant| format!("Module::{variant}"));
    let name = |kind: &str, variants: Vec<String>| -> Vec<String> {
        variants.into_iter().map(|variant| format!("{kind}::{variant}")).collect()
    };
    kinds.into_iter().flat_map(|(kind, variants)| name(kind, variants)).chain(module).collect()
}

/// The variants of an enum: serde's complaint about an unknown one lists them all.
fn of<T: DeserializeOwned>() -> Vec<String> {
    let complaint = serde_json::from_str::<T>(r#""?""#).err().expect("no variant is called ?").to_string();
    let (_, list) = complaint.split_once("expected one of ").expect("serde lists what it knows");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
