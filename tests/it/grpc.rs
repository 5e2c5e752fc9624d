//! A client of the door that implements HTTP/2 and gRPC only, so that it can send messages that TensorFlow's
//! clients never would.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::runtime::Runtime;

/// A call without an answer by then has failed. Far above the expected time, since the machine may be busy.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

/// A connection to a door.
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    token: Option<String>,
}

/// The error of a refused call: gRPC's code, and the message as in the header.
#[derive(Debug, PartialEq)]
pub struct Refused {
    pub code: u16,
    pub message: String,
}

/// A call under way.
pub struct Call {
    answer: ResponseFuture,
    pub body: SendStream<Bytes>,
}

impl Client {
    pub fn new(door: &str) -> Client {
        let address: SocketAddr = door.parse().expect("the door says its address");
        Client::over(TcpStream::connect(address).expect("the door is open"))
    }

    /// Over a connected socket.
    pub fn over(stream: TcpStream) -> Client {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.expect("the door speaks HTTP/2");
            tokio::spawn(async move {
                let _ended = connection.await;
            });
            sender
        });
        Client { runtime, sender, token: None }
    }

    /// Shows a token with each call.
    pub fn with_token(mut self, token: &str) -> Client {
        self.token = Some(token.to_owned());
        self
    }

    /// Begins a call and sends nothing of its body.
    pub fn begin(&self, method: &str) -> Result<Call, h2::Error> {
        self.runtime.block_on(self.begin_call(method))
    }

    async fn begin_call(&self, method: &str) -> Result<Call, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (answer, body) = sender.send_request(self.request(method), false)?;
        Ok(Call { answer, body })
    }

    fn request(&self, method: &str) -> Request<()> {
        let mut request = Request::post(format!("http://door/tensorflow.MasterService/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(()).unwrap()
    }

    /// Makes a call; returns its answer.
    pub fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut call = self.begin(method).expect("the connection is open");
        call.send(message.len(), message, true);
        self.answer(call)
    }

    /// Waits for the answer of a call.
    pub fn answer(&self, call: Call) -> Result<Vec<u8>, Refused> {
        let answer = async { tokio::time::timeout(ANSWERS_WITHIN, answer_to(call)).await };
        self.runtime.block_on(answer).expect("the call is answered")
    }

    /// The first `count` answers of these calls, and the calls that still wait.
    pub fn first_answers(&self, mut calls: Vec<Call>, count: usize) -> (Vec<Result<Vec<u8>, Refused>>, Vec<Call>) {
        let mut answers = Vec::new();
        while answers.len() < count {
            let first = futures::future::select_all(calls.iter_mut().map(|call| &mut call.answer));
            let within = async { tokio::time::timeout(ANSWERS_WITHIN, first).await };
            let (head, at, _) = self.runtime.block_on(within).expect("some call is answered");
            let call = calls.swap_remove(at);
            answers.push(self.runtime.block_on(read(head, call.body)));
        }
        (answers, calls)
    }

    /// Makes `count` calls without a message, at most `at_once` at a time, and ends their requests or leaves them open.
    /// Returns how often each code occurred; 0 stands for calls that were lost with the connection.
    pub fn flood(&self, method: &str, count: usize, at_once: usize, ends: bool) -> BTreeMap<u16, usize> {
        let code = |answer: Result<Vec<u8>, Refused>| answer.expect_err("a call without a message fails").code;
        self.runtime.block_on(async {
            let (mut codes, mut under_way) = (BTreeMap::new(), FuturesUnordered::new());
            for _ in 0..count {
                let sent = match self.sender.clone().ready().await {
                    Ok(mut sender) => sender.send_request(self.request(method), ends),
                    Err(error) => Err(error),
                };
                let Ok((answer, body)) = sent else {
                    *codes.entry(0).or_insert(0) += 1;
                    continue;
                };
                under_way.push(answer_to(Call { answer, body }));
                if under_way.len() >= at_once
                    && let Some(answer) = under_way.next().await
                {
                    *codes.entry(code(answer)).or_insert(0) += 1;
                }
            }
            while let Some(answer) = under_way.next().await {
                *codes.entry(code(answer)).or_insert(0) += 1;
            }
            codes
        })
    }
}

async fn answer_to(call: Call) -> Result<Vec<u8>, Refused> {
    let Call { answer, body } = call;
    read(answer.await, body).await
}

/// Reads the answer whose head was received; the request stays open meanwhile.
async fn read(head: Result<Response<RecvStream>, h2::Error>, _request: SendStream<Bytes>) -> Result<Vec<u8>, Refused> {
    let lost = |error: h2::Error| Refused { code: 0, message: format!("the connection: {error}") };
    let (head, mut body) = head.map(Response::into_parts).map_err(lost)?;
    status(&head.headers)?;
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(lost)?;
        let _capacity = body.flow_control().release_capacity(piece.len());
        bytes.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await.map_err(lost)?;
    trailers.as_ref().map_or(Ok(()), status)?;
    Ok(bytes.get(5..).unwrap_or_default().to_vec())
}

fn status(headers: &HeaderMap) -> Result<(), Refused> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match text("grpc-status").parse() {
        Ok(code @ 1u16..) => Err(Refused { code, message: text("grpc-message") }),
        _ => Ok(()),
    }
}

impl Call {
    /// Sends the head of a message that announces `claimed` bytes, and these bytes of it.
    pub fn send(&mut self, claimed: usize, message: &[u8], is_last: bool) {
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(claimed as u32);
        framed.put_slice(message);
        // A door that has refused the call has closed the stream.
        let _closed = self.body.send_data(framed.freeze(), is_last);
    }
}

/// A field of a protobuf message: a message, bytes or text.
pub fn field(tag: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
    [&head(tag, content.as_ref().len()), content.as_ref()].concat()
}

/// The bytes before such a field's content.
pub fn head(tag: u32, length: usize) -> Vec<u8> {
    [varint(u64::from(tag << 3 | 2)), varint(length as u64)].concat()
}

/// A field that is a number.
pub fn number(tag: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(tag << 3)), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// The first field `tag` of a message, which must be bytes, after other fields of bytes.
pub fn first(mut message: &[u8], tag: u32) -> Option<&[u8]> {
    let number = |message: &mut &[u8]| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let (&byte, rest) = message.split_first()?;
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return Some(value);
            }
        }
    };
    loop {
        let key = number(&mut message)?;
        let length = number(&mut message)? as usize;
        let content = message.get(..length)?;
        if key == u64::from(tag << 3 | 2) {
            return Some(content);
        }
        message = &message[length..];
    }
}
