//! Records the frames between burn's own client and burn's own remote server, for the tests of the door, which are built without
//! burn's client.
//!
//! `frames [FOLDER]` writes `tests/data/burn_frames/*.bin`, or the same files into a folder. A file has the frames of a session
//! without the handshakes, each as a byte (0 from the client, 1 from the server), its length as four bytes (little-endian), and
//! its payload.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::prelude::*;
use burn::remote::RemoteHost;
use suite::numbers::{fixed, input, ints};
use suite::training::{Mlp, batch};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ITERATIONS: usize = 4;
const PROGRAMS: [(&str, fn(&Device)); 3] = [("mlp_adam", mlp), ("cnn_sgd", cnn), ("lstm_adam", lstm)];

/// A frame: its sender and its payload.
type Frame = (u8, Vec<u8>);
/// The frames of each connection.
type Frames = Arc<Mutex<BTreeMap<usize, Vec<Frame>>>>;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data/burn_frames"),
        PathBuf::from,
    );
    std::fs::create_dir_all(&folder)?;
    let server = Server::start()?;
    for (name, program) in PROGRAMS {
        let (address, frames) = between(server.address.clone())?;
        let devices = RemoteHost::websocket(&format!("ws://{address}")).devices()?.into_vec();
        program(&devices[0]);
        // Only the session of the program has more than handshakes.
        let frames = frames.lock().unwrap().values().max_by_key(|frames| frames.len()).cloned().unwrap_or_default();
        let mut bytes = Vec::new();
        let (mut client, mut answered) = (0, 0);
        for (from, frame) in &frames {
            let sent = if *from == 0 { &mut client } else { &mut answered };
            *sent += 1;
            // The first of each is the handshake.
            if *sent > 1 {
                bytes.push(*from);
                bytes.extend(u32::try_from(frame.len())?.to_le_bytes());
                bytes.extend(frame);
            }
        }
        std::fs::write(folder.join(name).with_extension("bin"), &bytes)?;
        println!("{name}: {client} frames, {answered} answers, {} bytes", bytes.len());
    }
    Ok(())
}

fn mlp(device: &Device) {
    let device = device.clone().autodiff();
    let mut model = fixed(Mlp::new([6, 8, 3], &device), 1);
    let mut optimizer = AdamConfig::new().init();
    for i in 0..ITERATIONS {
        let x = input([4, 6], i as u64, &device);
        let loss =
            CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), ints([4], 3, i as u64, &device));
        let _: f32 = loss.clone().without_autodiff().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
    model.forward(input([2, 6], 9, &device)).into_data();
}

/// No operation is random: a dropout would draw other numbers on another device.
#[derive(burn::module::Module, Debug)]
struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    out: Linear,
}

impl Convolutional {
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(self.norm.forward(self.conv.forward(x)));
        self.out.forward(x.flatten(1, 3))
    }
}

fn cnn(device: &Device) {
    let device = device.clone().autodiff();
    let model = Convolutional {
        conv: Conv2dConfig::new([1, 3], [3, 3]).init(&device),
        norm: BatchNormConfig::new(3).init(&device),
        pool: MaxPool2dConfig::new([2, 2]).init(),
        out: LinearConfig::new(27, 10).init(&device),
    };
    let mut model = fixed(model, 1);
    let mut optimizer = SgdConfig::new().init();
    for i in 0..ITERATIONS {
        let (x, y) = batch(4, 64, i, &device);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(model.forward(x.reshape([4, 1, 8, 8])), y);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, grads);
    }
    model.forward(input([2, 1, 8, 8], 9, &device)).into_data();
}

#[derive(burn::module::Module, Debug)]
struct Recurrent {
    layer: Lstm,
    out: Linear,
}

fn lstm(device: &Device) {
    let device = device.clone().autodiff();
    let model =
        Recurrent { layer: LstmConfig::new(3, 4, true).init(&device), out: LinearConfig::new(4, 2).init(&device) };
    let mut model = fixed(model, 1);
    let mut optimizer = AdamConfig::new().init();
    for i in 0..ITERATIONS {
        let (x, y) = (input([2, 3, 3], i as u64, &device), input([2, 2], 7 + i as u64, &device));
        let (_, state) = model.layer.forward(x, None);
        let loss = MseLoss::new().forward(model.out.forward(state.hidden), y, Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.clone().backward(), &model);
        model = optimizer.step(1e-2, model, grads);
        let _: f32 = loss.without_autodiff().into_scalar();
    }
}

/// burn's own server, a process that ends with this value.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Result<Server> {
        let program = std::env::current_exe()?.with_file_name("server");
        let mut process = Command::new(program).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        BufReader::new(process.stdout.take().ok_or("its output is piped")?).read_line(&mut address)?;
        Ok(Server { process, address: address.trim().to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// A proxy to another address, and the frames on its connections.
fn between(server: String) -> Result<(String, Frames)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let frames = Frames::default();
    let kept = frames.clone();
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let ways = [(0, client.try_clone(), server.try_clone()), (1, server.try_clone(), client.try_clone())];
            for (from, source, target) in ways {
                let (Ok(source), Ok(target)) = (source, target) else { continue };
                let frames = frames.clone();
                thread::spawn(move || {
                    copy(source, target, |frame| {
                        frames.lock().unwrap().entry(number).or_default().push((from, frame));
                    })
                });
            }
        }
    });
    Ok((address, kept))
}

/// Copies one direction of a WebSocket, and reports its binary frames.
fn copy(mut source: TcpStream, mut target: TcpStream, mut tell: impl FnMut(Vec<u8>)) {
    let mut bytes = Vec::new();
    let mut is_open = false;
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = source.read(&mut buffer) {
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..count]);
        if !is_open && let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            bytes.drain(..end + 4);
            is_open = true;
        }
        while is_open && let Some((length, frame)) = frame(&bytes) {
            bytes.drain(..length);
            frame.into_iter().for_each(&mut tell);
        }
        // Recorded before it is forwarded, so that an answer never precedes its request.
        if target.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _closed = target.shutdown(Shutdown::Write);
}

/// The first frame of a WebSocket's bytes (RFC 6455, section 5.2), if it is whole: its length, and its payload if it is binary.
fn frame(bytes: &[u8]) -> Option<(usize, Option<Vec<u8>>)> {
    let (&first, &second) = (bytes.first()?, bytes.get(1)?);
    let number = |count: usize| Some(bytes.get(2..2 + count)?.iter().fold(0, |n, &byte| n << 8 | usize::from(byte)));
    let (length, mut at) = match second & 0x7f {
        126 => (number(2)?, 4),
        127 => (number(8)?, 10),
        length => (usize::from(length), 2),
    };
    let mask = if second & 0x80 == 0 { [0; 4] } else { bytes.get(at..at + 4)?.try_into().ok()? };
    at += if second & 0x80 == 0 { 0 } else { 4 };
    let masked = bytes.get(at..at + length)?;
    assert!(first & 0x0f != 0 && (first & 0x80 != 0 || first & 0x0f != 2), "burn sends its frames whole");
    let whole = || masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    Some((at + length, (first & 0x0f == 2).then(whole)))
}
