//! The port of the server: HTTP/1.1, connections that stay, and the addresses of the two interfaces.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::lock::lock;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::super::accept;
use super::super::browser::check_origin;
use super::super::listener::Listener;
use super::{MAX_BODY, MAX_CONNECTIONS, Serving, VERSION, infer, rest, value};
use crate::unauthenticated::{Progress, UnauthenticatedPeer};

/// How long the head of a request may take, also of the next one on a connection that stays.
const MAX_HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a body may take, the wait for memory included.
const MAX_BODY_TIME: Duration = Duration::from_secs(60);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The slot of a connection: among the unauthenticated clients until it has presented the token, then among the others.
enum Place {
    Unauthenticated(UnauthenticatedPeer),
    Known(#[allow(dead_code, reason = "held until the connection ends")] OwnedSemaphorePermit),
    Taken,
}

/// An answer before it is one of HTTP.
struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: String,
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
    if let Err(why) = check_origin(request.headers(), false, serving.token.is_some()) {
        return Answer::error(StatusCode::FORBIDDEN, why.trim_end());
    }
    if !serving.knows(shown_token(request.headers()).as_bytes()) {
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
        ("v1", None, []) => read(&request, || rest::status().to_string()),
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
    if let Place::Unauthenticated(unauthenticated) = std::mem::replace(&mut *place, Place::Taken) {
        unauthenticated.proved();
    }
    *place = Place::Known(permit);
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

/// The answer to a request whose body is read first.
async fn with_body(
    serving: &Serving,
    request: Request<Incoming>,
    answer: impl AsyncFnOnce(&Serving, &str) -> Result<String, Failure>,
) -> Answer {
    if request.method() != Method::POST {
        return Answer { allowed: Some("POST"), ..Answer::error(StatusCode::METHOD_NOT_ALLOWED, "use POST") };
    }
    let too_large = || {
        let why = format!("the request exceeds the limit of {MAX_BODY} bytes");
        Answer::error(StatusCode::PAYLOAD_TOO_LARGE, &why)
    };
    // Its size, or the limit if it states none.
    let most = request.body().size_hint().upper().unwrap_or(MAX_BODY as u64);
    if most > MAX_BODY as u64 {
        return too_large();
    }
    let read = async {
        let Ok(held) = serving.bodies.acquire_many((most as usize).div_ceil(1 << 10) as u32).await else {
            return Err(Answer::error(StatusCode::SERVICE_UNAVAILABLE, "the server is being closed"));
        };
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => Ok((body.to_bytes(), held)),
            Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
            Err(error) => Err(Answer::error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}"))),
        }
    };
    let (body, _held) = match tokio::time::timeout(MAX_BODY_TIME, read).await {
        Ok(Ok(read)) => read,
        Ok(Err(answer)) => return answer,
        Err(_) => {
            let why = format!("the body did not come within {} s", MAX_BODY_TIME.as_secs());
            return Answer::error(StatusCode::REQUEST_TIMEOUT, &why);
        }
    };
    let Ok(text) = std::str::from_utf8(&body) else {
        return Answer::error(StatusCode::BAD_REQUEST, "the request is not JSON: it is not UTF-8");
    };
    match answer(serving, text).await {
        Ok(body) => Answer::ok(body),
        Err(failure) => Answer::error(status_of(failure.code), &failure.message),
    }
}

async fn predicted(serving: &Serving, text: &str) -> Result<String, Failure> {
    let (asked, form) = rest::asked(&serving.model, text)?;
    let outputs = serving.answer(asked).await?;
    rest::answer(&serving.model, &outputs, form)
}

async fn inferred(serving: &Serving, text: &str) -> Result<String, Failure> {
    let infer::Inference { id, asked } = infer::asked(&serving.model, text)?;
    let fetches = asked.fetches.clone();
    let outputs = serving.answer(asked).await?;
    infer::answer(&serving.model, id.as_deref(), &fetches, &outputs)
}

/// The status of a failure, as TensorFlow Serving maps it.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResourceExhausted | Code::Unavailable | Code::Aborted | Code::Cancelled => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The token that a request shows.
fn shown_token(headers: &HeaderMap) -> &str {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    header.and_then(|shown| shown.strip_prefix("Bearer ")).unwrap_or_default()
}

impl Answer {
    fn ok(body: String) -> Answer {
        Answer { status: StatusCode::OK, kind: JSON, body, allowed: None }
    }

    /// An error, in the form of both interfaces.
    fn error(status: StatusCode, why: &str) -> Answer {
        Answer { status, ..Answer::ok(format!("{{\"error\":{}}}", value::quoted(why))) }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = [(CONTENT_TYPE, self.kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
        response.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
        if let Some(allowed) = self.allowed {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}
