//! Small messages and bulk of one flow, from the queue of one side to the order of the other: they are delivered in the order
//! in which they were sent, in whatever order they arrive and however late they are acknowledged.

use meshtf_tensor::ids::RequestId;
use proptest::prelude::*;

use super::*;
use crate::mesh::order::Arrivals;
use crate::protocol::{MAX_MESSAGE_BYTES, Message, ToClient};

const FLOW: Flow = Flow::Request(1);

#[derive(Clone, Copy, Debug)]
enum Event {
    SendSmall,
    SendBulk,
    SmallComes,
    /// That of the bulk messages under way, counted around.
    BulkComes(usize),
    Acknowledge,
}

/// A message on its way: a prefix, and which it is of all that were sent.
type Sent = (Prefix, u64);

/// One direction of a link.
#[derive(Default)]
struct Direction {
    outbound: Outbound,
    sent: u64,
    frames: u64,
    small: VecDeque<Sent>,
    bulk: Vec<Sent>,
    order: Arrivals,
    delivered: Vec<u64>,
}

fn envelope(number: u64) -> Envelope {
    ToClient::Fetched { id: RequestId(1), step: number }.into()
}

impl Direction {
    fn happens(&mut self, event: Event) {
        match event {
            Event::SendSmall => {
                self.sent += 1;
                self.frames += 1;
                let (mut prefix, _) = frame::encode_head(&envelope(self.sent)).unwrap();
                (prefix.number, prefix.after) = (self.frames, self.outbound.last_of(FLOW));
                self.small.push_back((prefix, self.sent));
            }
            Event::SendBulk => {
                self.sent += 1;
                let (prefix, head) = frame::encode_head(&envelope(self.sent)).unwrap();
                self.outbound.add(Some(FLOW), prefix, head, Vec::new(), || self.frames).unwrap();
                let (_, message) = lock(&self.outbound.queue).bulk.take().unwrap();
                let head = message.head[..PREFIX_BYTES].try_into().unwrap();
                self.bulk.push((Prefix::decode(head, MAX_MESSAGE_BYTES).unwrap(), self.sent));
            }
            Event::SmallComes => {
                let Some((prefix, number)) = self.small.pop_front() else { return };
                assert_eq!(self.order.frame(prefix.number), Ok(true));
                // As `Link::take_frame` has it.
                if prefix.after == 0 {
                    self.delivered.push(number);
                } else {
                    let ready = self.order.arrive(0, prefix.after, envelope(number)).unwrap();
                    self.deliver(ready);
                }
                let ready = self.order.caught_up().unwrap();
                self.deliver(ready);
            }
            Event::BulkComes(which) => {
                if self.bulk.is_empty() {
                    return;
                }
                let (prefix, number) = self.bulk.remove(which % self.bulk.len());
                let ready = self.order.message(prefix.number, prefix.behind, prefix.after, envelope(number)).unwrap();
                self.deliver(ready);
            }
            Event::Acknowledge => self.outbound.acknowledge(self.order.bulk(), &[]).unwrap(),
        }
    }

    fn deliver(&mut self, ready: Vec<Envelope>) {
        self.delivered.extend(ready.into_iter().map(|envelope| match envelope.message {
            Message::ToClient(ToClient::Fetched { step, .. }) => step,
            other => panic!("{other:?}"),
        }));
    }
}

proptest! {
    #[test]
    fn a_flow_keeps_its_order_whatever_is_acknowledged(
        events in proptest::collection::vec(
            prop_oneof![
                3 => Just(Event::SendSmall),
                2 => Just(Event::SendBulk),
                3 => Just(Event::SmallComes),
                3 => (0usize..8).prop_map(Event::BulkComes),
                2 => Just(Event::Acknowledge),
            ],
            0..200,
        ),
    ) {
        let mut direction = Direction::default();
        events.iter().for_each(|event| direction.happens(*event));
        while !direction.small.is_empty() || !direction.bulk.is_empty() {
            direction.happens(Event::SmallComes);
            direction.happens(Event::BulkComes(3));
        }
        let sent = direction.sent;
        prop_assert!(direction.delivered.iter().copied().eq(1..=sent), "{:?} of {}", direction.delivered, sent);
    }
}

#[test]
fn a_small_message_names_no_bulk_that_is_acknowledged() {
    let mut direction = Direction::default();
    assert_eq!(direction.outbound.last_of(FLOW), 0);
    direction.happens(Event::SendBulk);
    direction.happens(Event::SendBulk);
    assert_eq!(direction.outbound.last_of(FLOW), 2);
    assert_eq!(direction.outbound.last_of(Flow::Request(2)), 0);
    direction.outbound.acknowledge(1, &[]).unwrap();
    assert_eq!(direction.outbound.last_of(FLOW), 2);
    direction.outbound.acknowledge(2, &[]).unwrap();
    assert_eq!(direction.outbound.last_of(FLOW), 0);
    direction.happens(Event::SendBulk);
    assert_eq!(direction.outbound.last_of(FLOW), 3);
}
