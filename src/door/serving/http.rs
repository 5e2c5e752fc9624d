//! The port of the server: HTTP/1.1, connections that stay, and the addresses of the two interfaces.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::lock::lock;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::super::accept;
use super::super::browser::check_origin;
use super::super::listener::Listener;
use super::super::token::bearer;
use super::{Held, MAX_BODY, MAX_CONNECTIONS, Serving, VERSION, infer, rest, value};
use crate::unauthenticated::{Progress, UnauthenticatedPeer};

/// How long the head of a request may take, also of the next one on a connection that stays.
const MAX_HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a body may take, and how long it may wait for its turn before.
const MAX_BODY_TIME: Duration = Duration::from_secs(60);
const MAX_BODY_WAIT: Duration = Duration::from_secs(10);
/// Size of a body in bytes from which it is read, and its answer is written, on a thread of its own, so that other connections
/// do not wait.
const LARGE: usize = 64 << 10;
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;
const JSON: &str = "application/json";
/// The header with the length of the JSON, if tensors follow in bytes.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The slot of a connection: among the unauthenticated clients until it has presented the token, then among the others.
enum Place {
    Unauthenticated(UnauthenticatedPeer),
    Known(#[allow(dead_code, reason = "held until the connection ends")] OwnedSemaphorePermit),
}

/// An answer before it is one of HTTP.
struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: String,
    /// Tensors behind the JSON.
    bytes: Vec<u8>,
    /// The methods of the address, if the request has another.
    allowed: Option<&'static str>,
}

/// Accepts clients until it is dropped.
pub(super) async fn serve(serving: Arc<Serving>, listener: Listener) {
    accept(listener, &serving.unauthenticated_peers, "a client of the model", |stream, _, unauthenticated| {
        connection(Arc::clone(&serving), stream, unauthenticated)
    })
    .await;
}

async fn connection(serving: Arc<Serving>, stream: TcpStream, unauthenticated: UnauthenticatedPeer) {
    let told_to_go = unauthenticated.told_to_go();
    let place = Arc::new(Mutex::new(Place::Unauthenticated(unauthenticated)));
    let service = service_fn(|request: Request<Incoming>| {
        let (serving, place) = (Arc::clone(&serving), Arc::clone(&place));
        async move { Ok::<_, Infallible>(answer(&serving, request, &place).await.into_response()) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = connection => {}
        // Only clients that have not presented the token are told.
        () = told_to_go => {}
    }
}

async fn answer(serving: &Serving, request: Request<Incoming>, place: &Mutex<Place>) -> Answer {
    if let Place::Unauthenticated(unauthenticated) = &*lock(place) {
        unauthenticated.is_at(Progress::Spoke);
    }
    if let Err(why) = check_origin(request.headers(), false, serving.token.is_set()) {
        return Answer::error(StatusCode::FORBIDDEN, why.trim_end());
    }
    if !serving.token.accepts(bearer(request.headers()).unwrap_or_default().as_bytes()) {
        let why = "this port requires a token: the header `authorization: Bearer TOKEN`";
        return Answer::error(StatusCode::UNAUTHORIZED, why);
    }
    if !settle(serving, place) {
        let why = format!("{MAX_CONNECTIONS} connections are open, which is the limit");
        return Answer::error(StatusCode::SERVICE_UNAVAILABLE, &why);
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let model = &serving.model;
    // A version may be named, and there is one.
    let of_model = match parts.as_slice() {
        ["v1" | "v2", "models", name, "versions", version, rest @ ..] => Some((*name, Some(*version), rest)),
        ["v1" | "v2", "models", name, rest @ ..] => Some((*name, None, rest)),
        _ => None,
    };
    let Some((name, version, rest)) = of_model else { return of_server(serving, &request, &parts) };
    // TensorFlow Serving puts the verb behind the last part of the name.
    let last = version.unwrap_or(name);
    let (last, verb) = match last.split_once(':') {
        Some((last, verb)) if parts[0] == "v1" => (last, Some(verb)),
        _ => (last, None),
    };
    let (name, version) = if version.is_some() { (name, last) } else { (last, VERSION) };
    if name != model.name {
        return Answer::error(
            StatusCode::NOT_FOUND,
            &format!("there is no model {name:?}; this server has {}", model.name),
        );
    }
    if version != VERSION {
        return Answer::error(
            StatusCode::NOT_FOUND,
            &format!("there is no version {version:?}; {name} has version {VERSION}"),
        );
    }
    match (parts[0], verb, rest) {
        ("v1", None, []) => read(&request, || rest::status(serving.opened.session().map(drop)).to_string()),
        ("v1", None, ["metadata"]) => read(&request, || rest::metadata(model).to_string()),
        ("v2", None, []) => read(&request, || infer::metadata(model).to_string()),
        ("v2", None, ["ready"]) => ready(serving, &request),
        ("v1", Some("predict"), []) => with_body(serving, request, predicted).await,
        ("v2", None, ["infer"]) => with_body(serving, request, inferred).await,
        ("v1", Some(verb), []) => {
            let why = format!("{verb:?} is not served; use :predict, whose outputs are those of the model");
            Answer::error(StatusCode::NOT_IMPLEMENTED, &why)
        }
        _ => no_address(serving, &path),
    }
}

/// Moves a connection among the known clients. Whether there is a slot.
fn settle(serving: &Serving, place: &Mutex<Place>) -> bool {
    let mut place = lock(place);
    if matches!(*place, Place::Known(_)) {
        return true;
    }
    let Ok(permit) = Arc::clone(&serving.connections).try_acquire_owned() else { return false };
    if let Place::Unauthenticated(unauthenticated) = std::mem::replace(&mut *place, Place::Known(permit)) {
        unauthenticated.proved();
    }
    true
}

/// The addresses that name no model.
fn of_server(serving: &Serving, request: &Request<Incoming>, parts: &[&str]) -> Answer {
    match parts {
        ["v2"] => read(request, || infer::server().to_string()),
        ["v2", "health", "live"] => read(request, || "{\"live\":true}".to_owned()),
        ["v2", "health", "ready"] => ready(serving, request),
        ["metrics"] => Answer { kind: PROMETHEUS, ..read(request, || serving.metrics()) },
        [""] => Answer { kind: TEXT, ..read(request, || addresses(serving)) },
        _ => no_address(serving, request.uri().path()),
    }
}

/// Whether the model has a session.
fn ready(serving: &Serving, request: &Request<Incoming>) -> Answer {
    match serving.opened.session() {
        Ok(_) => read(request, || "{\"ready\":true}".to_owned()),
        Err(failure) => Answer::error(status_of(failure.code), &failure.message),
    }
}

fn no_address(serving: &Serving, path: &str) -> Answer {
    Answer::error(StatusCode::NOT_FOUND, &format!("{path} does not exist. {}", addresses(serving).trim_end()))
}

fn addresses(serving: &Serving) -> String {
    let name = &serving.model.name;
    format!(
        "POST /v1/models/{name}:predict (TensorFlow Serving) and /v2/models/{name}/infer (Open Inference Protocol); \
         GET /v1/models/{name}/metadata, /v2/models/{name}, /v2/health/ready and /metrics\n"
    )
}

/// The answer to a request that only reads. hyper omits its body for HEAD.
fn read(request: &Request<Incoming>, body: impl FnOnce() -> String) -> Answer {
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return Answer::ok(body());
    }
    Answer { allowed: Some("GET, HEAD"), ..Answer::error(StatusCode::METHOD_NOT_ALLOWED, "use GET") }
}

/// A body that was read, and the length of its JSON.
struct Received {
    body: Vec<u8>,
    json_length: usize,
    held: Held,
}

/// The answer to a request whose body is read first.
async fn with_body(
    serving: &Serving,
    request: Request<Incoming>,
    answer: impl AsyncFnOnce(&Serving, Received) -> Result<Answer, Failure>,
) -> Answer {
    let received = match receive(serving, request).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let read = Instant::now();
    match answer(serving, received).await {
        Ok(answer) => {
            serving.count(read, None);
            answer
        }
        Err(failure) => {
            serving.count(read, Some(failure.code));
            Answer::error(status_of(failure.code), &failure.message)
        }
    }
}

/// Reads a body within the limits.
///
/// # Errors
/// The answer that says which one it exceeds.
async fn receive(serving: &Serving, request: Request<Incoming>) -> Result<Received, Answer> {
    if request.method() != Method::POST {
        return Err(Answer { allowed: Some("POST"), ..Answer::error(StatusCode::METHOD_NOT_ALLOWED, "use POST") });
    }
    if let Some(coding) = request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let why = format!("the content encoding {coding:?} is not read");
        return Err(Answer::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, &why));
    }
    let stated = match request.headers().get(JSON_LENGTH).map(|value| value.to_str().map(str::parse::<usize>)) {
        None => None,
        Some(Ok(Ok(length))) => Some(length),
        Some(_) => {
            let why = format!("{JSON_LENGTH} is not a number of bytes");
            return Err(Answer::error(StatusCode::BAD_REQUEST, &why));
        }
    };
    let length = request.body().size_hint().exact();
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    let wait = async {
        match length {
            Some(length) => {
                Arc::clone(&serving.bodies).acquire_many_owned((length as usize).div_ceil(1 << 10) as u32).await
            }
            None => Arc::clone(&serving.unsized_bodies).acquire_owned().await,
        }
    };
    let Ok(Ok(held)) = tokio::time::timeout(MAX_BODY_WAIT, wait).await else {
        let why = "the bodies of other requests have all the memory that bodies may have; try again later";
        return Err(Answer::error(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let Ok(read) = tokio::time::timeout(MAX_BODY_TIME, whole(request.into_body(), length)).await else {
        let why = format!("the body did not come within {} s", MAX_BODY_TIME.as_secs());
        return Err(Answer::error(StatusCode::REQUEST_TIMEOUT, &why));
    };
    let body = read?;
    let json_length = stated.unwrap_or(body.len());
    if json_length > body.len() {
        let why = format!("{JSON_LENGTH} is {json_length}, and the body has {} bytes", body.len());
        return Err(Answer::error(StatusCode::BAD_REQUEST, &why));
    }
    Ok(Received { body, json_length, held: Some(held) })
}

/// The bytes of a body, whatever the sizes of its chunks.
async fn whole(mut body: Incoming, length: Option<u64>) -> Result<Vec<u8>, Answer> {
    let mut whole = Vec::with_capacity(length.unwrap_or_default() as usize);
    while let Some(frame) = body.frame().await {
        let broken = |error| Answer::error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if whole.len() + data.len() > MAX_BODY {
            return Err(too_large());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

fn too_large() -> Answer {
    Answer::error(StatusCode::PAYLOAD_TOO_LARGE, &format!("the request exceeds the limit of {MAX_BODY} bytes"))
}

impl Received {
    /// The JSON, and the bytes behind it.
    fn parts(&self) -> Result<(&str, &[u8]), Failure> {
        let (text, tensors) = self.body.split_at(self.json_length);
        let wrong = |_| {
            let remedy = format!("tensors in bytes need the header {JSON_LENGTH}");
            Failure::invalid(format!("the request is not JSON: it is not UTF-8; {remedy}"))
        };
        Ok((std::str::from_utf8(text).map_err(wrong)?, tensors))
    }
}

async fn predicted(serving: &Serving, mut received: Received) -> Result<Answer, Failure> {
    let (model, held, size) = (Arc::clone(&serving.model), received.held.take(), received.body.len());
    let (asked, form) = apart(size, move || rest::asked(&model, received.parts()?.0)).await?;
    let outputs = serving.answer(asked, held).await?;
    let (model, size) = (Arc::clone(&serving.model), bytes_of(&outputs));
    apart(size, move || rest::answer(&model, &outputs, form).map(Answer::ok)).await
}

async fn inferred(serving: &Serving, mut received: Received) -> Result<Answer, Failure> {
    let (model, held, size) = (Arc::clone(&serving.model), received.held.take(), received.body.len());
    let read = move || {
        let (text, tensors) = received.parts()?;
        infer::asked(&model, text, tensors)
    };
    let infer::Inference { id, asked, in_bytes } = apart(size, read).await?;
    let fetches = asked.fetches.clone();
    let outputs = serving.answer(asked, held).await?;
    let (model, size) = (Arc::clone(&serving.model), bytes_of(&outputs));
    let answer = move || {
        let infer::Answered { json, bytes } = infer::answer(&model, id.as_deref(), &fetches, &in_bytes, &outputs)?;
        Ok(Answer { bytes, ..Answer::ok(json) })
    };
    apart(size, answer).await
}

fn bytes_of(outputs: &[Tensor]) -> usize {
    outputs.iter().map(Tensor::byte_len).sum()
}

/// Work on a body or an answer of this size: on a thread of its own if it is large.
async fn apart<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if size < LARGE {
        return work();
    }
    let panicked = |_| Failure::new(Code::Internal, "the request could not be processed");
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// The status of a failure.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        // A later request may succeed.
        Code::Unavailable | Code::Aborted | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl Answer {
    fn ok(body: String) -> Answer {
        Answer { status: StatusCode::OK, kind: JSON, body, bytes: Vec::new(), allowed: None }
    }

    /// An error, in the form of both interfaces.
    fn error(status: StatusCode, why: &str) -> Answer {
        Answer { status, ..Answer::ok(format!("{{\"error\":{}}}", value::quoted(why))) }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let (json_length, mut body) = (self.body.len(), self.body.into_bytes());
        let has_tensors = !self.bytes.is_empty();
        body.extend(self.bytes);
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        if has_tensors {
            response.headers_mut().insert(JSON_LENGTH, HeaderValue::from(json_length));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let headers = [(CONTENT_TYPE, self.kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
        response.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
        if let Some(allowed) = self.allowed {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}
