//! gRPC's unary calls, as TensorFlow's clients make them: a request of one message, a response of one message and a status.
//!
//! tonic's own codecs hold a message in one piece on its way in and once more on its way out; here large tensors are read
//! from the pieces they come in and sent from where they lie. Connections, streams and limits of HTTP/2 are tonic's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header};
use tonic::codegen::{BoxFuture, Service};

use super::connection::Connection;
use super::rope::Rope;
use super::service::MasterService;
use super::tensor::Outgoing;
use crate::failure::{Code, Failure, Result};

/// The flag and the length before each message.
const HEADER: usize = 5;
/// Most that a call is ended before its client would give it up.
const EARLY: Duration = Duration::from_millis(50);
/// Most bytes of an error's text in a header; clients take no more than some thousand bytes of headers.
const MAX_STATUS_TEXT: usize = 2048;

/// Serves the calls of one connection's streams.
#[derive(Clone)]
pub(super) struct Calls {
    pub service: Arc<MasterService>,
}

/// What a call brings beside its message.
pub(super) struct Caller {
    /// The connection it came on.
    pub connection: Option<Connection>,
    /// The token of an `authorization: Bearer` header.
    pub token: Option<String>,
}

impl Service<Request<tonic::body::Body>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move { Ok(respond(answer(&service, request).await)) })
    }
}

async fn answer(service: &MasterService, request: Request<tonic::body::Body>) -> Result<Outgoing> {
    let (parts, body) = request.into_parts();
    let caller = Caller { connection: parts.extensions.get::<Connection>().cloned(), token: bearer(&parts.headers) };
    let Some(method) = parts.uri.path().strip_prefix("/tensorflow.MasterService/") else {
        let why = format!("this is TensorFlow's MasterService and has no {}", parts.uri.path());
        return Err(Failure::new(Code::Unimplemented, why));
    };
    let work = async {
        let message = Rope::open(body, service.room()).await?;
        service.call(method, message, &caller).await
    };
    let Some(limit) = deadline(&parts.headers) else { return work.await };
    // A little sooner than the client gives up by itself (or tonic, which calls that Cancelled): it is to learn why.
    let limit = limit - (limit / 10).min(EARLY);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let why =
            format!("the call was not done after {} ms, the client's limit, and was cancelled", limit.as_millis());
        Err(Failure::new(Code::DeadlineExceeded, why))
    })
}

/// How long the client waits: up to eight digits and a unit, as gRPC writes it.
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

fn bearer(headers: &HeaderMap) -> Option<String> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned)
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
            // TensorFlow's client makes a call again, ten times, that was answered Unavailable, and each could wait for a
            // task that is not there. To a program the two mean the same: open a new session.
            let code = if failure.code == Code::Unavailable { Code::Aborted } else { failure.code };
            let mut text = described(&failure);
            text.truncate(text.floor_char_boundary(MAX_STATUS_TEXT));
            Status::new(tonic::Code::from_i32(code.number().into()), text).into_http()
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The failure's text as TensorFlow's clients read it: they look for the node between its double braces.
pub(super) fn described(failure: &Failure) -> String {
    let mut text = failure.message.clone();
    let place = [failure.op.as_deref().map(|op| format!("op {op}")), failure.device.clone().or(failure.task.clone())];
    let place: Vec<String> = place.into_iter().flatten().collect();
    if !place.is_empty() {
        text += &format!(" ({})", place.join(" on "));
    }
    if let Some(node) = &failure.node {
        text += &format!("\n\t [[{{{{node {node}}}}}]]");
    }
    text
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
    fn a_response_is_framed() {
        let mut answer = respond(Ok(Outgoing::default())).into_body();
        assert_eq!(answer.segments.pop_front().unwrap(), [0u8; 5][..]);
        let refused = respond(Err(Failure::new(Code::NotFound, "no such session\u{e9}")));
        assert_eq!(refused.headers()["grpc-status"], "5");
        assert!(refused.body().is_end_stream());
    }
}
