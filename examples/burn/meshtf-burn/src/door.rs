//! The list of devices, which a door answers over plain HTTP.

use std::time::Duration;

use burn::remote::RemoteHost;
use serde::Deserialize;

use crate::name::Name;
use crate::{Error, Mesh};

/// The version of burn's remote protocol that this crate's burn speaks.
pub(crate) const PROTOCOL: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the list in bytes; no mesh has that many devices.
const LIMIT: u64 = 1 << 20;

/// The address of a door and its token; [`Mesh::at`] makes one.
#[derive(Clone, Debug)]
pub struct Door {
    address: String,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Devices {
    protocol: u64,
    devices: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    index: usize,
    name: String,
}

impl Door {
    pub(crate) fn new(address: &str) -> Door {
        let address = ["ws://", "http://"].iter().find_map(|scheme| address.strip_prefix(scheme)).unwrap_or(address);
        Door { address: address.trim_end_matches('/').to_owned(), token: None }
    }

    /// The token that the node was started with.
    pub fn with_token(mut self, token: &str) -> Door {
        self.token = Some(token.to_owned());
        self
    }

    /// Asks the door for the mesh's devices.
    ///
    /// # Errors
    ///
    /// Those of [`Mesh::reach`].
    pub fn reach(self) -> Result<Mesh, Error> {
        let text = self.ask()?;
        let answer = |reason: String| Error::Answer { address: self.address.clone(), reason };
        let list: Devices = serde_json::from_str(&text).map_err(|e| answer(e.to_string()))?;
        if list.protocol != PROTOCOL {
            return Err(Error::Protocol { address: self.address, door: list.protocol });
        }
        let mut names = Vec::with_capacity(list.devices.len());
        for entry in list.devices {
            let name: Name = entry.name.parse().map_err(|e: Error| answer(e.to_string()))?;
            names.push((entry.index, name));
        }
        let mut host = RemoteHost::websocket(&format!("ws://{}", self.address));
        if let Some(token) = self.token {
            host = host.with_credential(token);
        }
        Ok(Mesh { host, names })
    }

    fn ask(&self) -> Result<String, Error> {
        // The environment may name a proxy, which does not reach the mesh.
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .build();
        let mut request = ureq::Agent::new_with_config(config).get(format!("http://{}/devices", self.address));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let unreachable = |e: ureq::Error| Error::Unreachable { address: self.address.clone(), reason: e.to_string() };
        let mut response = request.call().map_err(unreachable)?;
        match response.status().as_u16() {
            200 => response.body_mut().with_config().limit(LIMIT).read_to_string().map_err(unreachable),
            401 | 403 => Err(Error::Token { address: self.address.clone() }),
            other => Err(Error::Answer {
                address: self.address.clone(),
                reason: format!("it answers {other} to GET /devices"),
            }),
        }
    }
}
