//! Decoding the messages of a TensorFlow client, as functions of bytes, for [`crate::fuzz`].

use std::sync::Arc;
use std::time::Duration;

use http_body::Frame;
use http_body_util::StreamBody;
use meshtf_tensor::failure::{Failure, Result};
use prost::Message;
use tonic::body::Body;

use super::budget::MessageBudget;
use super::feed::Reading;
use super::message as msg;
use super::readers::Readers;
use super::rope::Rope;

/// The feeds of a RunStepRequest.
const STEP_FEED: u32 = 2;
const LONGEST: usize = 1 << 20;

/// A message of each kind that is decoded as a whole.
pub fn message(bytes: &[u8]) -> bool {
    fn read<M: Message + Default>(bytes: &[u8]) -> bool {
        M::decode(bytes).is_ok()
    }
    let readers: [fn(&[u8]) -> bool; 9] = [
        read::<msg::CreateSessionRequest>,
        read::<msg::ExtendSessionRequest>,
        read::<msg::PartialRunSetupRequest>,
        read::<msg::MakeCallableRequest>,
        read::<msg::ReleaseCallableRequest>,
        read::<msg::CloseSessionRequest>,
        read::<msg::ResetRequest>,
        read::<msg::ListDevicesRequest>,
        read::<msg::RunStepRequest>,
    ];
    readers.map(|read| read(bytes)).contains(&true)
}

/// A RunStep with its feeds, which arrives in pieces of the length given by the first byte.
pub fn run_step(bytes: &[u8]) -> bool {
    let Some((&piece, bytes)) = bytes.split_first().filter(|(_, bytes)| bytes.len() <= LONGEST) else { return false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(step(bytes, usize::from(piece).max(1))).is_ok()
}

async fn step(bytes: &[u8], piece: usize) -> Result<()> {
    let mut framed = vec![0];
    framed.extend((bytes.len() as u32).to_be_bytes());
    framed.extend(bytes);
    let pieces: Vec<Result<Frame<bytes::Bytes>, tonic::Status>> =
        framed.chunks(piece).map(|piece| Ok(Frame::data(bytes::Bytes::copy_from_slice(piece)))).collect();
    let share = MessageBudget::new(LONGEST, 1, Duration::from_secs(60), Arc::default()).known();
    let mut rope = Rope::open(Body::new(StreamBody::new(futures::stream::iter(pieces))), share).await?;
    let reading = Reading { readers: &Readers::new(1, Arc::default()), admits: &|_, _, _| Ok(()) };
    rope.handle(&Readers::new(1, Arc::default())).await?;
    let mut head = Vec::new();
    while let Some(length) = rope.field(0, STEP_FEED, &mut head, LONGEST).await? {
        reading.named(&mut rope, length).await?;
    }
    let step = msg::RunStepRequest::decode(&*head);
    step.map(drop).map_err(|error| Failure::invalid(error.to_string()))
}
