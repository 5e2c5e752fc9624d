//! One session of a program: a WebSocket, on which tasks come in and answers go out.

use std::sync::Arc;

use burn_std::ExecutionError;
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::http::{MAX_GREETING, Newcomer};
use super::message::{
    self, BURN, RemoteMessage, SessionInfo, SessionRefusal, Task, TaskResponse, TaskResponseContent, VERSION,
};
use super::program::SessionNo;
use super::run::Running;
use super::{Client, Serving, process};
use crate::failure::Result;

/// Largest first message, which has a credential and a few numbers.
const MAX_INIT: usize = 64 << 10;
/// Largest message, which is burn's own limit.
const MAX_MESSAGE: usize = 1 << 30;

/// Bytes that a read makes room for, and clears: a client sends frames of half a kilobyte.
const READ_AT_ONCE: usize = 32 << 10;

/// Most answers that wait until a client reads them; more are dropped.
const MAX_REPLIES: usize = 4096;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Serves a session until its client ends it.
pub(super) async fn serve(door: Arc<Serving>, stream: TokioIo<Upgraded>, newcomer: Newcomer) {
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config(MAX_INIT))).await;
    let told_to_go = newcomer.stranger.told_to_go();
    let admitted = tokio::select! {
        admitted = tokio::time::timeout(MAX_GREETING, admit(&door, socket, newcomer)) => admitted.ok().flatten(),
        () = told_to_go => None,
    };
    let Some(Admitted { socket, running, session, replies }) = admitted else { return };
    // Nothing has come after the first message, to which the client waits for an answer.
    let stream = socket.into_inner();
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config(MAX_MESSAGE))).await;
    let open = Open { door, running, session };
    if let Err(failure) = open.serve(socket, replies).await {
        tracing::warn!("a burn program's session is closed: {failure}");
    }
}

fn config(most: usize) -> WebSocketConfig {
    let config = WebSocketConfig::default().max_message_size(Some(most)).max_frame_size(Some(most));
    config.read_buffer_size(READ_AT_ONCE)
}

struct Admitted {
    socket: Socket,
    running: Arc<Running>,
    session: SessionNo,
    replies: mpsc::Receiver<TaskResponse>,
}

/// Reads the first message and answers it; `None` if the client may not pass.
async fn admit(door: &Arc<Serving>, mut socket: Socket, newcomer: Newcomer) -> Option<Admitted> {
    let first = next(&mut socket).await?;
    let Newcomer { from, ends, stranger } = newcomer;
    let refusal = match message::init(&first) {
        Err(version) => {
            let version = version.map_or("another".to_owned(), |version| version.to_string());
            tracing::warn!(
                "refused a burn program at {from}: it speaks version {version} of burn's remote protocol, and this node version \
 {VERSION}, that of burn {BURN}"
            );
            SessionRefusal::IncompatibleProtocol { server_version: VERSION }
        }
        Ok(init) if !door.knows(&init.authorization) => {
            tracing::warn!("refused a burn program at {from}: its credential is not the door's token");
            SessionRefusal::Unauthorized
        }
        Ok(init) => {
            stranger.proved();
            let device_count = door.devices().len() as u32;
            if init.device_index < device_count {
                let process = tokio::task::spawn_blocking(move || process::of_peer(ends)).await.unwrap_or_default();
                let client = Client { address: from, process, credential: blake3::hash(&init.authorization) };
                let (sender, replies) = mpsc::channel(MAX_REPLIES);
                if let Some((running, session)) = door.open(client, init.device_index, sender) {
                    let info = TaskResponseContent::Init(SessionInfo::new(device_count));
                    let sent = send(&mut socket, &TaskResponse { content: info, id: 0 }).await;
                    if sent.is_none() {
                        door.close(&running, session);
                        return None;
                    }
                    return Some(Admitted { socket, running, session, replies });
                }
                tracing::warn!("refused a burn program at {from}: too many are connected");
                SessionRefusal::Unauthorized
            } else {
                SessionRefusal::NoSuchDevice { device_count }
            }
        }
    };
    send(&mut socket, &TaskResponse { content: TaskResponseContent::InitRefused(refusal), id: 0 }).await?;
    let _ = socket.close(None).await;
    None
}

/// The next message; `None` at the end of the stream.
async fn next(socket: &mut (impl StreamExt<Item = Result<Message, Error>> + Unpin)) -> Option<bytes::Bytes> {
    loop {
        match socket.next().await? {
            Ok(Message::Binary(data)) => return Some(data),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

type Error = tokio_tungstenite::tungstenite::Error;

async fn send(socket: &mut Socket, response: &TaskResponse) -> Option<()> {
    socket.send(Message::binary(message::encode(response))).await.ok()
}

/// A session that is open; it is closed when this is dropped.
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
    /// Takes what the client sends and sends what is answered.
    ///
    /// # Errors
    /// InvalidArgument if the client does not keep to the protocol.
    async fn serve(&self, socket: Socket, mut replies: mpsc::Receiver<TaskResponse>) -> Result<()> {
        let (mut out, mut incoming) = socket.split();
        let (answer, mut answers) = mpsc::channel(MAX_REPLIES);
        let write = async {
            loop {
                let response = tokio::select! {
                    response = replies.recv() => response,
                    response = answers.recv() => response,
                };
                // There is nobody any more who could answer.
                let Some(response) = response else { break };
                if out.send(Message::binary(message::encode(&response))).await.is_err() {
                    break;
                }
            }
        };
        let read = async {
            while let Some(frame) = next(&mut incoming).await {
                if !self.take(&frame, &answer).await? {
                    break;
                }
            }
            Ok(())
        };
        tokio::select! {
            result = read => result,
            () = write => Ok(()),
        }
    }

    /// Takes the messages of a frame; answers whether more are to come.
    async fn take(&self, frame: &[u8], answer: &mpsc::Sender<TaskResponse>) -> Result<bool> {
        let messages = message::decode(frame)?;
        let mut goes_on = true;
        let mut tasks = Vec::with_capacity(messages.len());
        for message in messages {
            match message {
                RemoteMessage::Task(task) => match at_once(&task) {
                    Some(response) => drop(answer.try_send(response)),
                    None => tasks.push(*task),
                },
                RemoteMessage::Close(_) | RemoteMessage::Init(_) => goes_on = false,
            }
        }
        self.running.push(self.session, tasks.into_iter()).await?;
        Ok(goes_on)
    }
}

/// The answer to what needs no step.
fn at_once(task: &Task) -> Option<TaskResponse> {
    /// That values of a dtype can be stored and computed with.
    const STORED_AND_COMPUTED: u32 = 0b011;
    let (content, id) = match task {
        Task::DTypeUsage(id, dtype) => {
            let uses = if crate::lowering::dtype(*dtype).is_ok() { STORED_AND_COMPUTED } else { 0 };
            (TaskResponseContent::DTypeUsage(uses), id)
        }
        // The client measures by itself if there is no window.
        Task::ProfileStart(id, _) => (TaskResponseContent::ProfileStart(Ok(None)), id),
        Task::ProfileEnd(id, ..) => {
            let reason = "no profiling window was opened".to_owned();
            (TaskResponseContent::ProfileEnd(Err(ExecutionError::WithContext { reason })), id)
        }
        _ => return None,
    };
    Some(TaskResponse { content, id: *id })
}
