//! A device without threads: it works on the thread of its owner, a simulation, on request, so that nothing depends on the
//! scheduler of the operating system or on the duration of anything.

use super::*;
use crate::outbox;

impl Threads {
    pub fn by_hand(place: Arc<Inner>, inbox: DeviceInbox<Table>) -> Arc<Threads> {
        outbox::stop_time();
        let table = Box::new(Table::new(Arc::clone(&place)));
        Threads::with(place, inbox, State { by_hand: Some(table), ..State::default() })
    }

    /// Whether there is a message to take or a turn to run.
    pub fn has_work(&self) -> bool {
        let state = lock(&self.state);
        state.by_hand.as_ref().is_some_and(|table| self.place.mailbox.is_waiting() || table.has_turn())
    }

    /// Takes the messages that wait. Does nothing for a device with threads, which take them.
    pub fn take_messages(&self) {
        self.with_table(|_| {});
    }

    /// Takes the messages that wait and runs a turn, if there is one.
    pub fn run_turn(&self) {
        self.with_table(|table| {
            if let Some(mut turn) = table.next_turn() {
                let result = self.place.run(&mut turn);
                table.end(turn, result, Duration::ZERO);
            }
        });
        self.flush();
    }

    fn with_table(&self, work: impl FnOnce(&mut Table)) {
        // Out of the state meanwhile: the sink may ask whether there is work.
        let Some(mut table) = lock(&self.state).by_hand.take() else { return };
        while let Some(message) = self.inbox.take() {
            table.take(message);
        }
        work(&mut table);
        lock(&self.state).by_hand = Some(table);
    }
}
