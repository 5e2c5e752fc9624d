//! The port of the door: HTTP. `/` is the page, `/events` the events that it follows (with `?session=ID&master=TASK` those of
//! that session too), `/mesh` one picture, `/metrics` for Prometheus.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use meshtf_tensor::failure;
use meshtf_tensor::lock::lock;
use tokio::net::TcpStream;

use super::super::accept;
use super::super::browser::check_origin;
use super::super::listener::Listener;
use super::super::token::bearer;
use super::{EVERY, MAX_FOLLOWERS, Serving, looks};
use crate::unauthenticated::{Progress, UnauthenticatedPeer};

/// How long a request and its answer may take, unless it follows the mesh.
const MAX_REQUEST: Duration = Duration::from_secs(10);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;
const PAGE: &str = concat!(
    include_str!("page.html"),
    "<script>\n",
    include_str!("page.js"),
    include_str!("session.js"),
    "</script>\n"
);
/// The page contains its script and style, and connects to no other port.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const EVENTS: &str = "text/event-stream";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The slot of a connection among the unauthenticated clients, until it has presented the token.
type Place = Arc<Mutex<Option<UnauthenticatedPeer>>>;

/// Accepts clients until it is dropped.
pub(super) async fn serve(door: Arc<Serving>, listener: Listener) {
    accept(listener, &door.unauthenticated_peers, "a client of the web page", |stream, _, unauthenticated| {
        connection(Arc::clone(&door), stream, unauthenticated)
    })
    .await;
}

/// One request and its answer: a connection that follows the mesh has no slot among the unauthenticated clients any more.
async fn connection(door: Arc<Serving>, stream: TcpStream, unauthenticated: UnauthenticatedPeer) {
    let told_to_go = unauthenticated.told_to_go();
    let place: Place = Arc::new(Mutex::new(Some(unauthenticated)));
    let service = service_fn(|request: Request<Incoming>| {
        let (door, place) = (Arc::clone(&door), Arc::clone(&place));
        async move { Ok::<_, Infallible>(answer(&door, &request, &place).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        _ = &mut serving => return,
        () = told_to_go => return,
        () = tokio::time::sleep(MAX_REQUEST) => {}
    }
    let follows = lock(&place).is_none();
    if follows {
        let _ended = serving.await;
    }
}

async fn answer(door: &Arc<Serving>, request: &Request<Incoming>, place: &Place) -> Response<Body> {
    if let Some(unauthenticated) = &*lock(place) {
        unauthenticated.is_at(Progress::Spoke);
    }
    let headers = request.headers();
    let path = request.uri().path();
    if let Err(why) = check_origin(headers, path == "/", door.token.is_set()) {
        return whole(StatusCode::FORBIDDEN, TEXT, why);
    }
    let query = request.uri().query().unwrap_or_default();
    if !door.token.accepts(shown_token(headers, query).as_bytes()) {
        let why =
            "this port requires a token: the header `authorization: Bearer TOKEN`, or ?token=TOKEN in a browser\n";
        return whole(StatusCode::UNAUTHORIZED, TEXT, why);
    }
    match *request.method() {
        Method::GET => {}
        // Without a body, which hyper omits; a follower does not use this method.
        Method::HEAD if path != "/events" => {}
        Method::HEAD => return response(StatusCode::OK, EVENTS, Full::default().boxed_unsync()),
        _ => {
            let mut refusal = whole(StatusCode::METHOD_NOT_ALLOWED, TEXT, "this port is read-only: use GET\n");
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
    }
    match path {
        "/" => whole(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        "/mesh" => told(door.picture(EVERY).await, "application/json"),
        "/metrics" => told(door.metrics().await, PROMETHEUS),
        "/events" if door.pictures.receiver_count() >= MAX_FOLLOWERS => {
            let why = format!("{MAX_FOLLOWERS} pages follow the mesh already, which is the limit");
            door.node.limit_reached(&why);
            whole(StatusCode::SERVICE_UNAVAILABLE, TEXT, why + "\n")
        }
        "/events" => {
            let named = match looks::named(query) {
                Ok(named) => named,
                Err(why) => return whole(StatusCode::BAD_REQUEST, TEXT, why),
            };
            if let Some(unauthenticated) = lock(place).take() {
                unauthenticated.proved();
            }
            follow(door, named)
        }
        path => {
            let why = format!("{path} does not exist; the paths are /, /metrics, /mesh and /events\n");
            whole(StatusCode::NOT_FOUND, TEXT, why)
        }
    }
}

/// Pictures as server-sent events, for as long as the other end reads them: the latest one whenever it is ready. Each comes
/// with the changes of the session that is named.
fn follow(door: &Arc<Serving>, named: Option<looks::Key>) -> Response<Body> {
    let mut pictures = door.pictures.subscribe();
    pictures.mark_changed();
    let watcher = named.map(|key| door.looks.watcher(key));
    let door = Arc::clone(door);
    let events = stream::unfold((door, pictures, watcher), async |(door, mut pictures, mut watcher)| {
        loop {
            pictures.changed().await.ok()?;
            let picture = Arc::clone(&pictures.borrow_and_update());
            // There is no picture before the first.
            if !picture.is_empty() {
                let mut events = format!("data: {picture}\n\n");
                if let Some(watcher) = &mut watcher {
                    watcher.add_events(&door.node, EVERY / 2, &mut events).await;
                }
                let frame = Frame::data(Bytes::from(events));
                return Some((Ok::<_, Infallible>(frame), (door, pictures, watcher)));
            }
        }
    });
    response(StatusCode::OK, EVENTS, StreamBody::new(events).boxed_unsync())
}

/// The token that a request shows.
fn shown_token<'a>(headers: &'a HeaderMap, query: &'a str) -> &'a str {
    let in_query = || query.split('&').find_map(|pair| pair.strip_prefix("token="));
    bearer(headers).or_else(in_query).unwrap_or_default()
}

fn told(text: failure::Result<Arc<str>>, kind: &'static str) -> Response<Body> {
    match text {
        Ok(text) => whole(StatusCode::OK, kind, text.as_bytes().to_vec()),
        Err(failure) => whole(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{failure}\n")),
    }
}

fn whole(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    response(status, kind, Full::new(body.into()).boxed_unsync())
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The address may contain the token.
        (REFERRER_POLICY, "no-referrer"),
    ];
    response.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

#[cfg(test)]
mod tests {
    use hyper::header::{AUTHORIZATION, HeaderName};

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_token_is_shown_in_a_header_or_an_address() {
        let with = headers(&[(AUTHORIZATION, "Bearer abc")]);
        assert_eq!(shown_token(&with, "token=x"), "abc");
        assert_eq!(shown_token(&HeaderMap::new(), "a=b&token=xyz"), "xyz");
        assert_eq!(shown_token(&HeaderMap::new(), "mytoken=xyz"), "");
        assert_eq!(shown_token(&headers(&[(AUTHORIZATION, "Basic abc")]), ""), "");
    }

    #[test]
    fn the_page_has_everything_in_itself() {
        for foreign in ["http://", "https://", "src=", "@import", "innerHTML", "eval("] {
            let rest = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!rest.contains(foreign), "the page has {foreign}");
        }
    }
}
