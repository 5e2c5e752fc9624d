//! One session of a program: a WebSocket, on which tasks come in and answers go out.

use std::sync::Arc;

use burn_std::ExecutionError;
use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Reservation;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::frame::{Frames, Said};
use super::http::{MAX_GREETING, Newcomer};
use super::message::{
    self, BURN, SessionInfo, SessionRefusal, SessionTask, TaskResponse, TaskResponseContent, VERSION,
};
use super::program::SessionNo;
use super::run::Running;
use super::websocket::{self, Incoming};
use super::{Client, MAX_SESSIONS, Serving, process};

/// Largest first message: a credential and a few numbers.
const MAX_INIT: usize = 64 << 10;
/// Largest message: burn's own limit.
const MAX_MESSAGE: usize = 1 << 30;

/// Maximum number of answers that wait until a client reads them; further ones are dropped.
const MAX_REPLIES: usize = 4096;
/// Maximum number of pings that wait to be answered; further ones get no answer.
const MAX_PINGS: usize = 4;

type Reader = websocket::Reader<ReadHalf<TokioIo<Upgraded>>>;
type Writer = WriteHalf<TokioIo<Upgraded>>;

/// Serves a session until its client ends it.
pub(super) async fn serve(door: Arc<Serving>, stream: TokioIo<Upgraded>, newcomer: Newcomer) {
    let (reader, writer) = tokio::io::split(stream);
    let reader = Reader::new(reader);
    let told_to_go = newcomer.unauthenticated.told_to_go();
    let admitted = tokio::select! {
        admitted = tokio::time::timeout(MAX_GREETING, admit(&door, reader, writer, newcomer)) => admitted.ok().flatten(),
        () = told_to_go => None,
    };
    let Some(Admitted { reader, writer, running, session, replies }) = admitted else { return };
    let open = Open { door, running, session };
    if let Err(failure) = open.serve(reader, writer, replies).await {
        tracing::warn!("a burn program's session is closed: {failure}");
        open.note_limit(&failure);
    }
}

struct Admitted {
    reader: Reader,
    writer: Writer,
    running: Arc<Running>,
    session: SessionNo,
    replies: mpsc::Receiver<TaskResponse>,
}

/// Reads the first message and answers it; `None` if the client is refused.
async fn admit(door: &Arc<Serving>, mut reader: Reader, mut writer: Writer, newcomer: Newcomer) -> Option<Admitted> {
    let first = loop {
        match reader.next(MAX_INIT, |bytes| std::future::ready(door.budget.reserve(bytes))).await.ok()? {
            Incoming::Message(first, _) => break first,
            Incoming::Ping(payload) => websocket::pong(&mut writer, &payload).await.ok()?,
            Incoming::Refused(_) | Incoming::Closed => return None,
        }
    };
    let Newcomer { from, ends, unauthenticated } = newcomer;
    let refused = TaskResponseContent::InitRefused;
    let answer = match message::init(&first) {
        Err(version) => {
            let version = version.map_or("another".to_owned(), |version| version.to_string());
            tracing::warn!(
                "refused a burn program at {from}: it speaks version {version} of burn's remote protocol, and this node version \
 {VERSION}, that of burn {BURN}"
            );
            refused(SessionRefusal::IncompatibleProtocol { server_version: VERSION })
        }
        Ok(init) if !door.knows(&init.authorization) => {
            tracing::warn!("refused a burn program at {from}: its credential is not the door's token");
            refused(SessionRefusal::Unauthorized)
        }
        Ok(init) => {
            unauthenticated.proved();
            let device_count = door.devices().len() as u32;
            if init.device_index < device_count {
                let process = tokio::task::spawn_blocking(move || process::of_peer(ends)).await.unwrap_or_default();
                let client = Client { address: from, process, credential: blake3::hash(&init.authorization) };
                let (sender, replies) = mpsc::channel(MAX_REPLIES);
                if let Some((running, session)) = door.open(client, init.device_index, sender) {
                    let info = TaskResponseContent::Init(SessionInfo::new(device_count));
                    let sent = send(&mut writer, &TaskResponse { content: info, id: 0 }).await;
                    if sent.is_none() {
                        door.close(&running, session);
                        return None;
                    }
                    return Some(Admitted { reader, writer, running, session, replies });
                }
                tracing::warn!("refused a burn program at {from}: too many are connected");
                door.node.limit_reached("another burn program was refused: too many are connected");
                too_many()
            } else {
                refused(SessionRefusal::NoSuchDevice { device_count })
            }
        }
    };
    send(&mut writer, &TaskResponse { content: answer, id: 0 }).await?;
    let _gone = websocket::close(&mut writer).await;
    None
}

/// The answer to a client for whose session there is no slot. Burn has no refusal for this, and each of those that it has blames
/// the client. An answer that is none to a handshake is shown whole, as the failure of a handshake, which may pass later.
fn too_many() -> TaskResponseContent {
    let reason =
        format!("the door has {MAX_SESSIONS} sessions, which is the limit: try again when another program has ended");
    TaskResponseContent::SyncBackend(Err(ExecutionError::WithContext { reason }))
}

async fn send(writer: &mut Writer, response: &TaskResponse) -> Option<()> {
    websocket::send(writer, &message::encode(response)).await.ok()
}

/// An open session; dropping this closes it.
struct Open {
    door: Arc<Serving>,
    running: Arc<Running>,
    session: SessionNo,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.door.close(&self.running, self.session);
    }
}

impl Open {
    /// Receives the client's messages and sends the answers.
    ///
    /// # Errors
    /// InvalidArgument if the client does not keep to the protocol.
    async fn serve(
        &self,
        mut reader: Reader,
        mut writer: Writer,
        mut replies: mpsc::Receiver<TaskResponse>,
    ) -> Result<()> {
        let (answer, mut answers) = mpsc::channel(MAX_REPLIES);
        let mut frames = Frames::default();
        let (ping, mut pings) = mpsc::channel::<Bytes>(MAX_PINGS);
        let write = async {
            loop {
                let response = tokio::select! {
                    response = replies.recv() => response,
                    response = answers.recv() => response,
                    Some(payload) = pings.recv() => {
                        if websocket::pong(&mut writer, &payload).await.is_err() {
                            break;
                        }
                        continue;
                    }
                };
                // The program is gone, so no answer will come.
                let Some(response) = response else { break };
                if send(&mut writer, &response).await.is_none() {
                    break;
                }
            }
        };
        let read = async {
            let mut said = Vec::new();
            loop {
                match reader.next(MAX_MESSAGE, |bytes| self.running.reserve(bytes)).await {
                    Ok(Incoming::Message(message, reserved)) => {
                        let goes_on = take(&mut frames, message, reserved, &answer, &mut said)?;
                        // Messages that arrived together are queued together.
                        if goes_on && reader.has_message() {
                            continue;
                        }
                        self.running.push(self.session, said.drain(..)).await?;
                        if !goes_on {
                            return Ok(());
                        }
                    }
                    Ok(Incoming::Refused(failure)) => {
                        tracing::warn!("a burn program's session is lost: {failure}");
                        self.note_limit(&failure);
                        self.running.refuse(self.session, failure);
                    }
                    Ok(Incoming::Ping(payload)) => drop(ping.try_send(payload)),
                    Ok(Incoming::Closed) => return Ok(()),
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        return Err(Failure::invalid(error.to_string()));
                    }
                    Err(_) => return Ok(()),
                }
            }
        };
        tokio::select! {
            result = read => result,
            () = write => Ok(()),
        }
    }

    /// Notifies the node if the failure is due to a limit.
    fn note_limit(&self, failure: &Failure) {
        if failure.code == Code::ResourceExhausted {
            self.door.node.limit_reached(&format!("a burn program's session failed: {}", failure.message));
        }
    }
}

/// Appends the messages of a frame to `said`, except those that it answers; returns whether more are to come. `reserved` is the
/// memory for the decoded tasks.
///
/// # Errors
/// InvalidArgument if no client sends such a frame.
fn take(
    frames: &mut Frames,
    frame: Bytes,
    reserved: Reservation,
    answer: &mpsc::Sender<TaskResponse>,
    said: &mut Vec<Said>,
) -> Result<bool> {
    let before = said.len();
    frames.read(&frame, said)?;
    // The decoded tasks are in memory now and replace the frame.
    drop((frame, reserved));
    let mut goes_on = true;
    let new = said.extract_if(before.., |said| match said {
        Said::Operation(..) => false,
        Said::Task(task) => match at_once(task) {
            Some(response) => {
                let _unread = answer.try_send(response);
                true
            }
            None => false,
        },
        Said::End => {
            goes_on = false;
            true
        }
    });
    new.for_each(drop);
    Ok(goes_on)
}

/// The answer to a task that needs no step.
fn at_once(task: &SessionTask) -> Option<TaskResponse> {
    /// The flags of a dtype whose values can be stored and computed with.
    const STORED_AND_COMPUTED: u32 = 0b011;
    let (content, id) = match task {
        SessionTask::DTypeUsage(id, dtype) => {
            let uses = if meshtf_lowering::dtype(*dtype).is_ok() { STORED_AND_COMPUTED } else { 0 };
            (TaskResponseContent::DTypeUsage(uses), id)
        }
        // The client measures by itself if there is no window.
        SessionTask::ProfileStart(id, _) => (TaskResponseContent::ProfileStart(Ok(None)), id),
        SessionTask::ProfileEnd(id, ..) => {
            let reason = "no profiling window was opened".to_owned();
            (TaskResponseContent::ProfileEnd(Err(ExecutionError::WithContext { reason })), id)
        }
        _ => return None,
    };
    Some(TaskResponse { content, id: *id })
}
