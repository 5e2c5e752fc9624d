//! A test of saved models: captured, saved as graphs with their weights, and run by `meshtf submit`, they give the answers of
//! flex.
//!
//! `capture FOLDER` saves into that folder, and prints a line for each model. The environment variable MESHTF names the binary.

use std::path::Path;
use std::process::{Command, ExitCode};

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{LinearConfig, LstmConfig};
use burn::prelude::*;
use suite::numbers::{fixed, input};
use suite::training::{Cnn, Mlp};

const TOLERANCE: f32 = 1e-4;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = Path::new(&folder);
    let here = Device::flex();
    let mlp = fixed(Mlp::new([6, 32, 10], &here), 1);
    let cnn = fixed(Cnn::new(4, 8, &here), 1);
    let encoder = fixed(TransformerEncoderConfig::new(4, 8, 2, 2).init(&here), 1);
    let lstm = fixed(LstmConfig::new(3, 5, true).init(&here), 1);
    let linear = fixed(LinearConfig::new(4, 3).init(&here), 1);
    let results = [
        ("mlp.json", model("mlp.json", folder, mlp, [3, 6], Mlp::forward)),
        ("cnn.pb", model("cnn.pb", folder, cnn, [2, 1, 8, 8], |m: &Cnn, x| m.forward(x, None))),
        (
            "encoder.pb",
            model("encoder.pb", folder, encoder, [2, 3, 4], |m, x| m.forward(TransformerEncoderInput::new(x))),
        ),
        ("lstm.pb", model("lstm.pb", folder, lstm, [2, 4, 3], |m, x| m.forward(x, None).0)),
        ("linear.json", model("linear.json", folder, linear, [2, 4], |m, x| m.forward::<2>(x))),
        ("weights beside a graph", weights(folder).map(|()| 0.0)),
    ];
    let mut passed = true;
    for (name, result) in results {
        match result {
            Ok(off) => println!("ok      captured {name:<35} off by {off:.0e}"),
            Err(e) => {
                passed = false;
                println!("FAILED  captured {name:<35} {e}");
            }
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The difference of the saved graph's answer to that of `module` on flex.
fn model<M: Module, const A: usize, const B: usize>(
    name: &str,
    folder: &Path,
    module: M,
    shape: [usize; A],
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B>,
) -> Result<f32> {
    let x = input(shape, 2, &Device::flex());
    let expected: Vec<f32> = forward(&module, x.clone()).into_data().iter::<f32>().collect();

    let device = Device::capture();
    let captured = device
        .capture_scope(|scope| {
            let on = x.clone().to_device(&device);
            let taken = meshtf_burn::id(&on).expect("a tensor on the capture device");
            let y = forward(&module.clone().to_device(&device), on);
            scope.complete([taken], [meshtf_burn::id(&y).expect("a tensor on the capture device")])
        })
        .map_err(|e| format!("{e:?}"))?;
    let path = folder.join(name);
    let saved = meshtf_burn::save(&captured, &path)?;

    let array = path.with_extension("npy");
    let values: Vec<f32> = x.into_data().iter::<f32>().collect();
    std::fs::write(&array, npy(&shape, &values))?;
    let out = folder.join(format!("{name}.out/"));
    let mut submit = meshtf("submit", &path)?;
    submit.args(["--feed", &format!("{}=@{}", saved.inputs[0], array.display()), "--out"]).arg(&out);
    // A GraphDef does not name its fetches.
    if path.extension().is_some_and(|extension| extension == "pb") {
        submit.args(["--fetch", &saved.outputs[0]]);
    }
    said(submit)?;
    let file = std::fs::read_dir(&out)?.next().ok_or("nothing was written")??.path();
    let answer = floats(&std::fs::read(file)?)?;
    if answer.len() != expected.len() {
        return Err(format!("{} numbers, {} on flex", answer.len(), expected.len()).into());
    }
    let off = answer.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if off > TOLERANCE || off.is_nan() { Err(format!("differs by {off:e}").into()) } else { Ok(off) }
}

/// The weights of `mlp.json`, which was saved before, are found after a move; missing or wrong ones are an error.
fn weights(folder: &Path) -> Result<()> {
    let moved = folder.join("moved");
    std::fs::create_dir_all(&moved)?;
    let (graph, beside) = (moved.join("mlp.json"), moved.join("mlp.weights"));
    std::fs::rename(folder.join("mlp.json"), &graph)?;
    std::fs::rename(folder.join("mlp.weights"), &beside)?;
    let mut files: Vec<_> = std::fs::read_dir(&beside)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    // Of its four, the two matrices; the biases are small.
    let [first, second] = &files[..] else { return Err(format!("there are {files:?}").into()) };
    let plan = || {
        let mut plan = meshtf("plan", &graph)?;
        plan.args(["--feed", &format!("input_0=@{}", folder.join("mlp.npy").display())]);
        said(plan)
    };
    plan()?;
    let told = |what: &str| match plan() {
        Ok(()) => Err(format!("a graph whose weight {what} is planned")),
        Err(e) if e.to_string().contains("mlp.weights/weight_") && e.to_string().contains(what) => Ok(()),
        Err(e) => Err(format!("of a weight that {what}: {e}")),
    };
    std::fs::copy(second, first)?;
    told("holds a tensor of shape")?;
    std::fs::remove_file(first)?;
    told("No such file")?;
    Ok(())
}

fn meshtf(command: &str, graph: &Path) -> Result<Command> {
    let mut meshtf = Command::new(std::env::var_os("MESHTF").ok_or("MESHTF names no binary")?);
    meshtf.arg(command).arg(graph);
    Ok(meshtf)
}

/// Runs a command; its stderr is the error.
fn said(mut command: Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ").into());
    }
    Ok(())
}

/// float32 as NumPy's file format, version 1.0.
fn npy(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let dims: String = shape.iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}");
    header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn floats(bytes: &[u8]) -> Result<Vec<f32>> {
    let length = bytes.get(8..10).ok_or("not an array")?;
    let header = 10 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    let (text, data) = bytes.split_at_checked(header).ok_or("not an array")?;
    if !String::from_utf8_lossy(text).contains("'<f4'") {
        return Err("not of float32".into());
    }
    Ok(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
