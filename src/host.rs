//! What every participant hosts: a client's end, and with a task a worker and a master. Messages come in here.

#[cfg(test)]
mod simulation;

use std::sync::Arc;

use crate::client::Client;
use crate::exec::{Device, Offer, Resources};
use crate::failure::Result;
use crate::master::Master;
use crate::plan::Task;
use crate::post::Post;
use crate::protocol::{DeviceInfo, Envelope, Message, Peer};
use crate::worker::Worker;

pub(crate) struct Host {
    pub client: Arc<Client>,
    resources: Arc<Resources>,
    worker: Option<Worker>,
    master: Option<Master>,
}

impl Host {
    /// A host for `task`, or for a client alone. `resources` are what its graphs keep and may touch.
    pub fn new(task: Option<&Task>, post: &Arc<dyn Post>, resources: Resources) -> Self {
        let resources = Arc::new(resources);
        Host {
            client: Client::new(Arc::clone(post)),
            worker: task.map(|task| Worker::new(task.clone(), Arc::clone(post), Arc::clone(&resources))),
            master: task.map(|task| Master::new(task.clone(), Arc::clone(post))),
            resources,
        }
    }

    /// Opens a device and serves it from now on.
    pub fn serve(&self, task: &Task, offer: Offer) -> Result<DeviceInfo> {
        let name = task.device(offer.kind, offer.index);
        let info = DeviceInfo {
            name: name.clone(),
            backend: offer.backend.to_owned(),
            description: offer.description.clone(),
        };
        if let Some(worker) = &self.worker {
            let device = Device::open(name.clone(), offer.open()?, Arc::clone(&self.resources), worker.sink())?;
            worker.add_device(name, device);
        }
        Ok(info)
    }

    pub fn deliver(&self, from: &Peer, envelope: Envelope) {
        match &envelope.message {
            Message::Reply { .. } | Message::Fetched { .. } | Message::Part { .. } | Message::Through { .. } => {
                self.client.deliver(from, envelope);
            }
            Message::Request { .. }
            | Message::Registered { .. }
            | Message::Got { .. }
            | Message::Done { .. }
            | Message::Failed { .. } => {
                if let Some(master) = &self.master {
                    master.deliver(from, envelope);
                }
            }
            Message::Register { .. }
            | Message::Start { .. }
            | Message::Push { .. }
            | Message::Abort { .. }
            | Message::Release { .. }
            | Message::Clear { .. } => {
                if let Some(worker) = &self.worker {
                    worker.deliver(from, envelope);
                }
            }
            Message::Hello(_) | Message::Goodbye { .. } => {}
        }
    }

    /// What is not over yet, for people; empty when nothing is.
    #[cfg(test)]
    fn holds(&self) -> String {
        let mut held = Vec::new();
        held.extend((self.client.waits() > 0).then(|| format!("{} requests", self.client.waits())));
        let sessions = self.master.as_ref().map_or(0, Master::sessions);
        held.extend((sessions > 0).then(|| format!("{sessions} sessions as their master")));
        held.extend(self.worker.as_ref().and_then(Worker::holds));
        held.join(", ")
    }

    pub fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        if let Some(master) = &self.master {
            master.down(peer, task, why);
        }
        if let Some(worker) = &self.worker {
            worker.down(peer);
        }
        self.client.down(peer, task, why);
    }
}
