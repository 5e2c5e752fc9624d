//! A server that receives the messages of a client, computes nothing, and answers zeros: an upper bound of the speed of any
//! server.

use std::net::{TcpListener, TcpStream};
use std::thread;

use burn_backend::{BoolDType, DType, DeviceSettings, FloatDType, IntDType, StreamId, TensorData};
use burn_ir::TensorIr;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tungstenite::Message;

/// The version of burn's remote protocol.
const VERSION: u16 = 2;
/// Maximum size of a request in bytes; a request is the last message of its frame.
const MAX_REQUEST: usize = 1024;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Serialize)]
struct Response {
    content: Content,
    id: u64,
}

#[derive(Serialize)]
enum Content {
    Init(Info),
    ReadTensor(std::result::Result<TensorData, ()>),
    SyncBackend(std::result::Result<(), ()>),
}

#[derive(Serialize)]
struct Info {
    version: u16,
    settings: DeviceSettings,
    device_count: u32,
    peer_id: Option<()>,
}

/// Serves this number of devices until the process ends.
pub fn serve(listener: TcpListener, devices: u32) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            if let Err(error) = session(stream, devices) {
                eprintln!("a session ends: {error}");
            }
        });
    }
}

fn session(stream: TcpStream, device_count: u32) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut socket = tungstenite::accept(stream)?;
    let mut is_open = false;
    loop {
        let Message::Binary(frame) = socket.read()? else { continue };
        let response = if is_open {
            answer(&frame[frame.len().saturating_sub(MAX_REQUEST)..])
        } else {
            is_open = true;
            let settings = DeviceSettings::with_dtypes(FloatDType::F32, IntDType::I32, BoolDType::Native);
            let info = Info { version: VERSION, settings, device_count, peer_id: None };
            Some(Response { content: Content::Init(info), id: 0 })
        };
        if let Some(response) = response {
            socket.send(Message::binary(rmp_serde::to_vec(&response)?))?;
        }
    }
}

/// The answer to a frame that ends in a request.
fn answer(end: &[u8]) -> Option<Response> {
    if let Some((id, _, tensor)) = asked::<(u64, StreamId, TensorIr)>(end, b"ReadTensor") {
        let size = match tensor.dtype {
            DType::Bool(_) => 1,
            other => other.size(),
        };
        let bytes = vec![0; tensor.shape.num_elements() * size];
        let data = TensorData::from_bytes_vec(bytes, tensor.shape, tensor.dtype);
        return Some(Response { content: Content::ReadTensor(Ok(data)), id });
    }
    let (id, _) = asked::<(u64, StreamId)>(end, b"SyncBackend")?;
    Some(Response { content: Content::SyncBackend(Ok(())), id })
}

/// The arguments of a request of this name.
fn asked<T: DeserializeOwned>(end: &[u8], name: &[u8]) -> Option<T> {
    let at = end.windows(name.len()).position(|window| window == name)?;
    rmp_serde::from_slice(&end[at + name.len()..]).ok()
}
