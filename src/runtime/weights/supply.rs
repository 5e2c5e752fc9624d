//! The answers to participants that ask for constants: at once if they are in memory; otherwise, for a session whose master this
//! node is, from its client, so that a task needs no link with that.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::{Tensor, constant};

use crate::protocol::constants::{MAX_ASKED, MAX_ASKED_BYTES};
use crate::protocol::inquiry::{Answer, Inquiry};
use crate::protocol::{Content, Envelope, Peer, Reply, ToClient};
use crate::runtime::requests::Requests;
use crate::runtime::router::Router;
use crate::runtime::weights::Turn;
use crate::runtime::weights::fetch::{MAX_SILENCE, silent, wait_for};

/// Most inquiries for constants that are passed on to clients at a time.
const MAX_PASSED_ON: usize = 64;

/// Answers inquiries for constants.
pub(crate) struct Supply {
    client: Arc<Requests>,
    router: Arc<dyn Router>,
    passed_on: Arc<AtomicUsize>,
}

impl Supply {
    pub fn new(client: Arc<Requests>, router: Arc<dyn Router>) -> Supply {
        Supply { client, router, passed_on: Arc::default() }
    }

    /// Answers an inquiry; `client_of` returns the client of a session whose master this node is.
    pub fn answer(
        &self,
        from: &Peer,
        id: RequestId,
        (session, contents): (SessionId, Vec<Content>),
        client_of: impl FnOnce(SessionId) -> Option<Peer>,
    ) {
        let answered = match self.at_hand(&contents) {
            Ok(Some(values)) => Ok(values),
            Ok(None) => match client_of(session).filter(|client| client != from) {
                Some(client) => return self.pass_on(from, id, session, contents, client),
                None => Err(Failure::new(Code::NotFound, "the constants are not here any more")),
            },
            Err(failure) => Err(failure),
        };
        reply(&self.router, from, id, answered);
    }

    /// The constants that are asked for; `None` if not all are in memory.
    fn at_hand(&self, contents: &[Content]) -> Result<Option<Vec<Tensor>>> {
        if contents.len() > MAX_ASKED {
            return Err(Failure::invalid(format!("an inquiry asks for {MAX_ASKED} constants at most")));
        }
        let Some(values) =
            contents.iter().map(|content| self.client.weights().at_hand(content)).collect::<Option<Vec<_>>>()
        else {
            return Ok(None);
        };
        let bytes = values.iter().map(Tensor::byte_len).fold(0usize, usize::saturating_add);
        if values.len() > 1 && bytes > MAX_ASKED_BYTES {
            let why = format!("an inquiry asks for {MAX_ASKED_BYTES} bytes of constants at most, or for one constant");
            return Err(Failure::invalid(why));
        }
        // Elements do not stay in memory because they were sent.
        Ok(Some(values.iter().map(constant::at_hand).collect()))
    }

    /// Asks a session's client, and passes its answer on. The one that asked compares it with the contents.
    fn pass_on(&self, from: &Peer, id: RequestId, session: SessionId, contents: Vec<Content>, client: Peer) {
        let refused = |why: String| Err(Failure::new(Code::ResourceExhausted, why));
        let Some(turn) = Turn::take(&self.passed_on, MAX_PASSED_ON) else {
            let why = format!("{MAX_PASSED_ON} inquiries for constants are being passed on already");
            return reply(&self.router, from, id, refused(why));
        };
        let (requests, router, asker) = (Arc::clone(&self.client), Arc::clone(&self.router), from.clone());
        let work = move || {
            let _until_it_is_answered = turn;
            let asked = requests.inquire(&client, Inquiry::Constants { session, contents }, Vec::new());
            let answered = asked.and_then(|asked| {
                let answer = wait_for(&requests, &client, asked, MAX_SILENCE, || true);
                answer.unwrap_or_else(|| Err(silent(&client, MAX_SILENCE)))
            });
            let answered = answered.and_then(|(answer, values)| match answer {
                Reply::Told(Answer::Constants) => Ok(values),
                other => Err(Failure::new(Code::Internal, format!("unexpected answer from {client}: {other:?}"))),
            });
            reply(&router, &asker, id, answered);
        };
        if let Err(error) = thread::Builder::new().name("meshtf-weights".into()).spawn(work) {
            reply(&self.router, from, id, refused(format!("cannot start a thread for constants: {error}")));
        }
    }
}

fn reply(router: &Arc<dyn Router>, to: &Peer, id: RequestId, answered: Result<Vec<Tensor>>) {
    let envelope = |result, tensors| Envelope::new(ToClient::Reply { id, result }, tensors);
    let sent = match answered {
        Ok(values) => router.send(to, envelope(Ok(Reply::Told(Answer::Constants)), values)),
        Err(failure) => router.send(to, envelope(Err(failure), Vec::new())),
    };
    if let Err(failure) = sent
        && failure.code != Code::Unavailable
    {
        let _gone = router.send(to, envelope(Err(failure), Vec::new()));
    }
}
