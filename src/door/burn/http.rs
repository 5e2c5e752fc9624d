//! The port of the door: HTTP, whose `/session` becomes a WebSocket and whose `/devices` lists the devices.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use meshtf_tensor::lock::lock;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::super::accept;
use super::super::browser::check_origin;
use super::super::listener::Listener;
use super::super::token::bearer;
use super::message::{BURN, VERSION};
use super::socket::Acknowledging;
use super::{Serving, session};
use crate::unauthenticated::{Progress, UnauthenticatedPeer};

/// How long a client may take until it has opened a session.
pub(super) const MAX_GREETING: Duration = Duration::from_secs(10);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Accepts clients until it is dropped.
pub(super) async fn serve(door: Arc<Serving>, listener: Listener) {
    accept(listener, &door.unauthenticated_peers, "a burn program", |stream, from, unauthenticated| {
        connection(Arc::clone(&door), stream, from, unauthenticated)
    })
    .await;
}

/// A connection whose client has presented no credential yet.
pub(super) struct Newcomer {
    pub from: IpAddr,
    /// The addresses of this end and of the client's end.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// Its slot among the unauthenticated clients, until it has opened a session.
    pub unauthenticated: UnauthenticatedPeer,
}

async fn connection(door: Arc<Serving>, stream: TcpStream, from: IpAddr, unauthenticated: UnauthenticatedPeer) {
    let told_to_go = unauthenticated.told_to_go();
    let ends = stream.local_addr().ok().zip(stream.peer_addr().ok());
    let newcomer = Newcomer { from, ends, unauthenticated };
    let (send_session, session) = tokio::sync::oneshot::channel();
    let upgraded = Arc::new(Mutex::new(Some(send_session)));
    let service = service_fn(|request: Request<Incoming>| {
        let (door, upgraded) = (Arc::clone(&door), Arc::clone(&upgraded));
        async move {
            let response = answer(&door, &request);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS
                && let Some(sender) = lock(&upgraded).take()
            {
                let _ = sender.send(hyper::upgrade::on(request));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Acknowledging(stream)), service)
        .with_upgrades();
    let greeting = async {
        let answered = tokio::time::timeout(MAX_GREETING, serving).await;
        answered.ok()?.ok()?;
        // There is no upgrade if it only requested the list.
        let upgrade = session.await.ok()?;
        let upgraded = upgrade.await.ok()?;
        newcomer.unauthenticated.is_at(Progress::Spoke);
        Some(upgraded)
    };
    let greeted = tokio::select! {
        greeted = greeting => greeted,
        () = told_to_go => None,
    };
    if let Some(upgraded) = greeted {
        session::serve(door, TokioIo::new(upgraded), newcomer).await;
    }
}

fn answer(door: &Arc<Serving>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    // A browser names the page that makes the request, and no page of the web may reach a listener on the user's own machine.
    if request.headers().contains_key(ORIGIN) {
        return text(StatusCode::FORBIDDEN, "this port serves burn programs, not web pages".to_owned());
    }
    // It does not name the page if that is of the same origin: of a host name that resolves to this machine.
    if let Err(why) = check_origin(request.headers(), false, door.token.is_set()) {
        return text(StatusCode::FORBIDDEN, why);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/session") => match request.headers().get(SEC_WEBSOCKET_KEY) {
            Some(key) if wants_websocket(request.headers()) => {
                let mut response = Response::new(Full::default());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                let accept = derive_accept_key(key.as_bytes());
                let headers = response.headers_mut();
                headers.insert(CONNECTION, hyper::header::HeaderValue::from_static("Upgrade"));
                headers.insert(UPGRADE, hyper::header::HeaderValue::from_static("websocket"));
                match accept.parse() {
                    Ok(accept) => headers.insert(SEC_WEBSOCKET_ACCEPT, accept),
                    Err(_) => return text(StatusCode::BAD_REQUEST, "the WebSocket key is not valid".to_owned()),
                };
                response
            }
            _ => text(
                StatusCode::UPGRADE_REQUIRED,
                "/session is a WebSocket; ask for it with Upgrade: websocket".to_owned(),
            ),
        },
        (&Method::GET, "/devices") => {
            let token = bearer(request.headers()).unwrap_or_default();
            if !door.knows(token.as_bytes()) {
                let why = "this door requires a token: the header `authorization: Bearer TOKEN`".to_owned();
                return text(StatusCode::UNAUTHORIZED, why);
            }
            let device = |(index, name): (usize, &meshtf_tensor::device::DeviceName)| json!({"index": index, "name": name.to_string()});
            let devices: Vec<_> = door.devices().iter().enumerate().map(device).collect();
            let mut response = text(StatusCode::OK, json!({"protocol": VERSION, "devices": devices}).to_string());
            let json = hyper::header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        (_, path) => {
            let why = format!(
                "meshtf serves burn {BURN} programs here, at /session, and the list of their devices at /devices; not {path}\n"
            );
            text(StatusCode::NOT_FOUND, why)
        }
    }
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}
