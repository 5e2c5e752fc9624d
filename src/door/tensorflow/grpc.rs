//! gRPC's unary calls, as TensorFlow's clients make them: a request of one message, a response of one message and a
//! status.
//!
//! tonic's own codecs copy a message once on the way in and once on the way out; this module reads large tensors from the
//! pieces they arrive in and sent from their own memory. Connections, streams and HTTP/2's limits are tonic's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header};
use tonic::codegen::{BoxFuture, Service};

use super::super::token::bearer;
use super::connection::{Call, Caller, Connection};
use super::message::{Method, described};
use super::rope::Rope;
use super::service::MasterService;
use super::tensor::Outgoing;

/// The flag and the length before each message.
const HEADER: usize = 5;
/// A call times out at most this long before its client's own limit.
const EARLY: Duration = Duration::from_millis(50);
/// Maximum size of an error's text in a header in bytes, escaped; clients accept some thousand bytes of headers.
const MAX_STATUS_TEXT: usize = 2048;

/// Serves the calls of one connection's streams.
#[derive(Clone)]
pub(super) struct Calls {
    pub service: Arc<MasterService>,
}

impl Service<Request<tonic::body::Body>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        match Begun::new(&self.service, request) {
            Ok(begun) => Box::pin(async move { Ok(respond(begun.answer().await)) }),
            Err(failure) => Box::pin(ready(Ok(respond(Err(failure))))),
        }
    }
}

/// A call of which only the headers were received. There may be many, so it is small: the headers are dropped, and the
/// state for reading the message is made when that begins to arrive.
struct Begun {
    service: Arc<MasterService>,
    method: Method,
    caller: Caller,
    call: Option<Call>,
    limit: Option<Duration>,
    body: tonic::body::Body,
}

impl Begun {
    fn new(service: &Arc<MasterService>, request: Request<tonic::body::Body>) -> Result<Begun> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let method = path
            .strip_prefix("/tensorflow.MasterService/")
            .and_then(Method::named)
            .ok_or_else(|| Failure::new(Code::Unimplemented, no_method(path)))?;
        let connection = parts.extensions.get::<Connection>().cloned();
        let is_known = service.knows(bearer(&parts.headers));
        if is_known && let Some(connection) = &connection {
            connection.prove();
        }
        let call = connection.as_ref().map(Connection::call).transpose()?.flatten();
        let caller = Caller { connection, is_known, limit: Mutex::default() };
        Ok(Begun { service: Arc::clone(service), method, caller, call, limit: deadline(&parts.headers), body })
    }

    async fn answer(self) -> Result<Outgoing> {
        let Begun { service, method, caller, mut call, limit, body } = self;
        let work = async {
            let share = match &caller.connection {
                // A connection that has shown the token uses the proven budget; whether the call may pass is checked
                // separately.
                Some(connection) if !caller.is_known && !connection.is_proven() => {
                    service.budget().unproven(connection.origin())
                }
                None if !caller.is_known => service.budget().unproven(None),
                _ => service.budget().known(),
            };
            let message = Rope::open(body, share).await;
            // From now on a call that is reset no longer counts as noise.
            call.iter_mut().for_each(Call::has_begun);
            let message = message?.in_call(call);
            Box::pin(service.call(method, message, &caller)).await
        };
        let Some(limit) = limit else { return work.await };
        // A little before the client (or tonic, as Cancelled) gives up, so that it learns why.
        let given = limit;
        let limit = limit - (limit / 10).min(EARLY);
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            // A client sends the time that it has left, rounded; its configuration has the number that was given.
            let given = lock(&caller.limit).unwrap_or(given);
            let why = format!("the call was cancelled at the client's limit of {} ms", given.as_millis());
            Err(Failure::new(Code::DeadlineExceeded, why))
        })
    }
}

/// Why a method is not one of this server, and where its caller finds what it looks for.
fn no_method(path: &str) -> String {
    if path.starts_with("/tensorflow.eager.") || path.starts_with("/tensorflow.WorkerService/") {
        return format!(
            "this server runs sessions of TensorFlow 1 (tf.compat.v1.Session), not eager execution or functions of TensorFlow 2 \
             on other tasks (tf.config.experimental_connect_to_cluster, tf.distribute.ParameterServerStrategy): it has no method \
             {path}. Build a graph with tf.compat.v1.disable_eager_execution() and run it in a session; tf.device places its nodes"
        );
    }
    format!("this server is TensorFlow's MasterService, which has no method {path}")
}

/// How long the client waits: up to eight digits and a unit, in gRPC's form.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 60 * 60),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

fn respond(result: Result<Outgoing>) -> Response<Answer> {
    let result = result.and_then(|out| Ok((out.check()?, out)));
    let mut response = match result {
        Ok((length, out)) => {
            let mut head = [0; HEADER];
            head[1..].copy_from_slice(&length.to_be_bytes());
            let mut segments = VecDeque::from(out.into_segments());
            segments.push_front(Bytes::copy_from_slice(&head));
            Response::new(Answer { segments, has_trailers: true })
        }
        Err(failure) => {
            // TensorFlow's client repeats a call that was answered Unavailable ten times, and each could wait for a
            // missing task. To a program both codes mean the same: open a new session.
            let code = if failure.code == Code::Unavailable { Code::Aborted } else { failure.code };
            let mut response = Response::new(Answer::default());
            let headers = response.headers_mut();
            headers.insert("grpc-status", HeaderValue::from(u16::from(code.number())));
            headers.insert("grpc-message", escaped(&described(&failure)));
            response
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// A text in gRPC's form for headers: printable ASCII except the percent sign as it is, any other byte as `%0A`.
/// Truncated at a character boundary if it is too long.
fn escaped(text: &str) -> HeaderValue {
    let mut out = String::new();
    for character in text.chars() {
        let before = out.len();
        match character {
            ' '..='~' if character != '%' => out.push(character),
            _ => character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.push_str(&format!("%{byte:02X}"))),
        }
        if out.len() > MAX_STATUS_TEXT {
            out.truncate(before);
            break;
        }
    }
    HeaderValue::from_str(&out).unwrap_or(HeaderValue::from_static(""))
}

/// The body of a response: a message in pieces, then the status that all went well.
#[derive(Default)]
pub(super) struct Answer {
    segments: VecDeque<Bytes>,
    has_trailers: bool,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(segment) = self.segments.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(segment))));
        }
        if !std::mem::take(&mut self.has_trailers) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.segments.is_empty() && !self.has_trailers
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    #[test]
    fn a_failure_names_its_node_as_tensorflow_does() {
        let failure = Failure::invalid("Incompatible shapes: [2,3] vs. [4,5]")
            .at_node("tower/add", "AddV2")
            .on_device("/job:local/task:1/device:CPU:0");
        assert_eq!(
            described(&failure),
            "Incompatible shapes: [2,3] vs. [4,5] (op AddV2 on /job:local/task:1/device:CPU:0)\n\t [[{{node tower/add}}]]"
        );
        assert_eq!(described(&Failure::invalid("no")), "no");
    }

    #[test]
    fn deadlines_as_grpc_writes_them() {
        let check = |text: &'static str, limit: Option<Duration>| {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), HeaderValue::from_static(text))]);
            assert_eq!(deadline(&headers), limit, "{text}");
        };
        check("300m", Some(Duration::from_millis(300)));
        check("2H", Some(Duration::from_secs(7200)));
        check("99999999n", Some(Duration::from_nanos(99_999_999)));
        check("999999999n", None);
        check("12", None);
        check("", None);
        check("-1S", None);
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    #[test]
    fn clients_of_version_2_learn_what_runs_here() {
        let eager = no_method("/tensorflow.eager.EagerService/CreateContext");
        assert!(eager.contains("tf.compat.v1.Session") && eager.contains("EagerService/CreateContext"), "{eager}");
        assert!(eager.len() < MAX_STATUS_TEXT);
        assert!(no_method("/tensorflow.MasterService/X").contains("MasterService, which has no method"));
    }

    #[test]
    fn a_response_is_framed() {
        let mut answer = respond(Ok(Outgoing::default())).into_body();
        assert_eq!(answer.segments.pop_front().unwrap(), [0u8; 5][..]);
        let refused = respond(Err(Failure::new(Code::NotFound, "no such session\u{e9}")));
        assert_eq!(refused.headers()["grpc-status"], "5");
        assert_eq!(refused.headers()["grpc-message"], "no such session%C3%A9");
        assert!(refused.body().is_end_stream());
    }

    #[test]
    fn only_invalid_header_characters_are_escaped() {
        let check = |text: &str, header: &str| assert_eq!(escaped(text), header, "{text}");
        check("Incompatible shapes: [2,3] vs. [4,5]", "Incompatible shapes: [2,3] vs. [4,5]");
        check("no \"x\" in {{node Variable}} <~`#?>", "no \"x\" in {{node Variable}} <~`#?>");
        check("100%\n\t[[x]]\u{7f}\u{e9}", "100%25%0A%09[[x]]%7F%C3%A9");
        check("", "");
        // Truncated before the character that does not fit.
        check(&"x".repeat(MAX_STATUS_TEXT + 1), &"x".repeat(MAX_STATUS_TEXT));
        check(&("x".repeat(MAX_STATUS_TEXT - 5) + "\u{e9}"), &"x".repeat(MAX_STATUS_TEXT - 5));
    }
}
