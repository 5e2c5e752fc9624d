//! Limits on requests under way: the bytes received from clients, and the memory they take when decoded.
//!
//! A message counts with the bytes received, not with its announced length. Clients that have not shown the door's
//! token yet share a small [budget](super::unproven).

use std::sync::Arc;
use std::time::Duration;

use meshtf_graph::graphdef::weigh::{MAX_GRAPH_BYTES, Schema, weigh};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Budget;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pieces::{Pieces, malformed};
use super::unproven::{MessagePlace, Unproven};
use crate::unauthenticated::Origin;

/// Maximum size in bytes of the messages from clients that have not shown the door's token, of one and of all together: the
/// token is in a session's first message, after the graph. At most a quarter of the node's memory budget, if it has one.
const MAX_UNPROVEN_BYTES: usize = 256 << 20;
const UNPROVEN_SHARE: usize = 4;
/// Bytes per permit.
const GRAIN: usize = 1 << 10;

/// The bytes of messages under way that a door allows.
#[derive(Clone)]
pub(super) struct MessageBudget(Arc<Limits>);

struct Limits {
    longest: usize,
    silence: Duration,
    known: Arc<Semaphore>,
    unproven: Arc<Unproven>,
    decoding: Arc<Semaphore>,
    /// The memory budget of the node.
    memory: Arc<Budget>,
}

impl MessageBudget {
    /// A budget for `count` messages of the longest kind at once, whose clients may be silent for `silence`, within the memory
    /// budget of the node.
    pub fn new(longest: usize, count: usize, silence: Duration, memory: Arc<Budget>) -> MessageBudget {
        let unproven = unproven_bytes(memory.limit());
        MessageBudget::with_unproven(longest, count, silence, memory, unproven)
    }

    /// The same, with `unproven` bytes for clients that have not shown the token.
    pub(super) fn with_unproven(
        longest: usize,
        count: usize,
        silence: Duration,
        memory: Arc<Budget>,
        unproven: usize,
    ) -> MessageBudget {
        let grains = longest.div_ceil(GRAIN).saturating_mul(count).min(Semaphore::MAX_PERMITS);
        MessageBudget(Arc::new(Limits {
            longest,
            silence,
            known: Arc::new(Semaphore::new(grains)),
            unproven: Unproven::new(unproven),
            decoding: Arc::new(Semaphore::new(MAX_GRAPH_BYTES / GRAIN)),
            memory,
        }))
    }

    /// The memory budget of the node.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.0.memory
    }

    /// An empty share, for a message whose client may pass.
    pub fn known(&self) -> Share {
        Share { budget: self.clone(), held: Held::default(), came: 0, expanded: 0 }
    }

    /// An empty share, for a message from a client that has not shown the token.
    pub fn unproven(&self, from: Option<Origin>) -> Share {
        Share { held: Held::Unproven(self.0.unproven.place(from)), ..self.known() }
    }

    /// Decodes a message of this schema. The memory of the decoded message stays counted while the permit is held.
    ///
    /// # Errors
    /// InvalidArgument if it is malformed; ResourceExhausted if it exceeds the limit, alone or with others.
    pub fn decode<M: prost::Message + Default>(
        &self,
        message: Pieces,
        schema: &'static Schema,
    ) -> Result<(M, OwnedSemaphorePermit)> {
        let bytes = weigh(message.clone(), schema, MAX_GRAPH_BYTES)?;
        let permit = take(&self.0.decoding, bytes.div_ceil(GRAIN))?;
        // Reserved until it is decoded; from then on the allocator counts it.
        let _reserved = self.0.memory.reserve(bytes)?;
        Ok((M::decode(message).map_err(|error| malformed(&error))?, permit))
    }
}

/// One message's share of the budget, held until it is dropped.
pub(super) struct Share {
    budget: MessageBudget,
    held: Held,
    /// Bytes received.
    came: usize,
    /// Bytes that it expanded to beyond those received.
    expanded: usize,
}

/// The budget that the share is taken from.
enum Held {
    Unproven(MessagePlace),
    Known { permit: Option<OwnedSemaphorePermit>, bytes: usize },
}

impl Default for Held {
    fn default() -> Self {
        Held::Known { permit: None, bytes: 0 }
    }
}

impl Share {
    /// The memory budget of the node.
    pub fn memory(&self) -> &Arc<Budget> {
        self.budget.memory()
    }

    /// Whether a message of this length may be received.
    ///
    /// # Errors
    /// ResourceExhausted if it exceeds the limit of one message.
    pub fn admit(&self, length: usize) -> Result<()> {
        let longest = self.budget.0.longest;
        if length > longest {
            let why = format!("the request has {length} bytes, which exceeds the limit of {longest} (--grpc-limit)");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let most = self.budget.0.unproven.most();
        if !self.is_known() && length > most {
            let why = format!(
                "the request has {length} bytes, which exceeds the limit of {most} for a client that has not shown the \
                 door's token; show it as the header `authorization: Bearer TOKEN`, or feed large values instead"
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        Ok(())
    }

    /// How long the client may pause in the middle of a message.
    pub fn silence(&self) -> Duration {
        self.budget.0.silence
    }

    /// Whether the client may pass.
    pub fn is_known(&self) -> bool {
        matches!(self.held, Held::Known { .. })
    }

    /// Waits until the message is evicted for another; returns the failure to answer with.
    pub async fn evicted(&self) -> Failure {
        match &self.held {
            Held::Unproven(place) => place.evicted().await,
            Held::Known { .. } => std::future::pending().await,
        }
    }

    /// The whole message has been received.
    pub fn is_whole(&self) {
        if let Held::Unproven(place) = &self.held {
            place.is_whole();
        }
    }

    /// Takes from the budget for the bytes received so far, which are in memory already.
    ///
    /// # Errors
    /// ResourceExhausted if the budget or the node's memory budget is exhausted.
    pub fn received(&mut self, bytes: usize) -> Result<()> {
        self.came = bytes;
        self.memory().keep(bytes)?;
        self.cover()
    }

    /// Takes from the budget for the decoded size of a few bytes, as if all of it had been sent.
    ///
    /// # Errors
    /// ResourceExhausted if the budget is exhausted, or it exceeds the limit of one message.
    pub fn expand(&mut self, received: usize, bytes: usize) -> Result<()> {
        let longest = self.budget.0.longest;
        self.expanded = self.expanded.saturating_add(bytes);
        if self.expanded > longest {
            let why = format!(
                "the feeds of the request take at least {} bytes when decoded, which exceeds the limit of \
                 {longest} (--grpc-limit)",
                self.expanded
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        self.memory().admit(bytes).map_err(Failure::with_holder)?;
        self.received(received)
    }

    /// The client has shown that it may pass.
    ///
    /// # Errors
    /// ResourceExhausted if the budget of proven clients is exhausted.
    pub fn prove(&mut self) -> Result<()> {
        if self.is_known() {
            return Ok(());
        }
        let _until_it_has_the_other = std::mem::take(&mut self.held);
        self.cover()
    }

    fn cover(&mut self) -> Result<()> {
        let all = self.came.saturating_add(self.expanded);
        let (permit, bytes) = match &mut self.held {
            Held::Unproven(place) => return place.cover(all),
            Held::Known { permit, bytes } => (permit, bytes),
        };
        let missing = all.saturating_sub(*bytes).div_ceil(GRAIN);
        if missing == 0 {
            return Ok(());
        }
        let more = take(&self.budget.0.known, missing)?;
        match permit {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
        *bytes += missing * GRAIN;
        Ok(())
    }
}

/// The budget for clients that have not shown the token, given the node's memory budget.
fn unproven_bytes(budget: Option<usize>) -> usize {
    budget.map_or(MAX_UNPROVEN_BYTES, |budget| MAX_UNPROVEN_BYTES.min(budget / UNPROVEN_SHARE))
}

fn take(from: &Arc<Semaphore>, grains: usize) -> Result<OwnedSemaphorePermit> {
    let taken = u32::try_from(grains).ok().and_then(|grains| Arc::clone(from).try_acquire_many_owned(grains).ok());
    taken.ok_or_else(|| {
        let why = "too many large requests are under way; try again";
        Failure::new(Code::ResourceExhausted, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_full(result: Result<()>) -> bool {
        result.is_err_and(|failure| failure.code == Code::ResourceExhausted)
    }

    #[test]
    fn received_bytes_count_and_announced_ones_do_not() {
        let budget = MessageBudget::new(4 * GRAIN, 2, Duration::MAX, Arc::default());
        assert!(is_full(budget.known().admit(4 * GRAIN + 1)));
        let claims: Vec<Share> = (0..100).map(|_| budget.known()).collect();
        assert!(claims.iter().all(|share| share.admit(4 * GRAIN).is_ok()));
        let [mut one, mut other, mut third] = [(); 3].map(|()| budget.known());
        one.received(4 * GRAIN).unwrap();
        other.received(1).unwrap();
        other.received(3 * GRAIN + 1).unwrap();
        assert!(is_full(third.received(1)));
        drop(other);
        third.received(1).unwrap();
    }

    #[test]
    fn expanded_bytes_count_like_sent_ones() {
        let budget = MessageBudget::new(4 * GRAIN, 2, Duration::MAX, Arc::default());
        let mut share = budget.known();
        share.expand(10, 3 * GRAIN).unwrap();
        assert!(is_full(share.expand(10, GRAIN + 1)));
        let mut other = budget.known();
        other.expand(0, 4 * GRAIN).unwrap();
        assert!(is_full(budget.known().expand(0, 2 * GRAIN)));
    }

    #[test]
    fn unauthenticated_peers_have_a_part_of_the_budget() {
        assert_eq!(unproven_bytes(None), 256 << 20);
        assert_eq!(unproven_bytes(Some(100_000_000)), 25_000_000);
        assert_eq!(unproven_bytes(Some(64 << 30)), 256 << 20);
    }

    #[test]
    fn clients_without_the_token_have_a_budget_of_their_own() {
        let budget = MessageBudget::new(usize::MAX, 1, Duration::MAX, Arc::default());
        let [mut unauthenticated, mut other, mut third] = [(); 3].map(|()| budget.unproven(None));
        assert!(is_full(unauthenticated.admit(MAX_UNPROVEN_BYTES + 1)));
        unauthenticated.received(MAX_UNPROVEN_BYTES).unwrap();
        unauthenticated.is_whole();
        assert!(is_full(other.received(1)));
        budget.known().received(1).unwrap();
        // A client that shows it frees its share for the next one.
        unauthenticated.prove().unwrap();
        other.received(MAX_UNPROVEN_BYTES).unwrap();
        // So does one that has not sent everything; one that has shown the token meanwhile continues.
        third.received(1).unwrap();
        other.prove().unwrap();
        other.received(MAX_UNPROVEN_BYTES + 1).unwrap();
        third.received(MAX_UNPROVEN_BYTES).unwrap();
    }
}
