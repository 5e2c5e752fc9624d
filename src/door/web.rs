//! The server for observers of the mesh: Prometheus, at `/metrics`, and people, with one page that shows the mesh as it
//! changes.
//!
//! It only reads. It shows only data that every member of the mesh may request, so it is open to this machine only, and to
//! other machines only with a token.

mod http;
mod log;
mod looks;
mod metrics;
mod picture;
mod process;
mod recent;

use std::sync::Arc;
use std::time::Duration;

use self::log::Log;
use self::looks::Looks;
pub(super) use self::metrics::{Text, one};
pub(super) use self::process::Process;
use self::recent::Recent;
use crate::Client;
use meshtf_tensor::failure;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::token::Token;
use super::{Door, DoorConfig, DoorError, listen};
use crate::node::Node;
pub(super) use crate::protocol::runs::StepTimes;
use crate::unauthenticated::UnauthenticatedPeers;

/// The flag of the command line that opens it.
const FLAG: &str = "--web";
/// The interval of new pictures while a page follows, and the greatest age of a picture for other requests, so that these cost
/// the nodes no more.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of pages that follow the mesh at a time.
const MAX_FOLLOWERS: usize = 32;

/// The state that the connections share.
struct Serving {
    node: Arc<Node>,
    token: Token,
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
    /// The last picture for the pages that follow, as JSON; made while there are any.
    pictures: watch::Sender<Arc<str>>,
    /// The last picture, and the last metrics.
    picture: Recent<Arc<str>>,
    metrics: Recent<Arc<str>>,
    /// The sessions that followers inspect.
    looks: Looks,
    /// The last events of all nodes.
    log: Log,
}

/// Opens a web server on a node: a page that shows the mesh, and the node's metrics in the format of Prometheus. If there is a
/// token, requests present it as `authorization: Bearer TOKEN` or `?token=TOKEN`.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use meshtf::doors::{DoorConfig, open_web};
/// use meshtf::{Node, NodeConfig};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let node = Arc::new(Node::start(NodeConfig::default()).await?);
/// let door = open_web(node, DoorConfig { address: "127.0.0.1:8080".parse()?, token: None }).await?;
/// // A browser shows the mesh at http://127.0.0.1:8080, and Prometheus reads /metrics.
/// std::future::pending::<()>().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// If the address is taken, or can be reached from other machines and there is no token.
///
/// # Cancellation
/// Nothing stays open if the future is dropped.
pub async fn open(node: Arc<Node>, config: DoorConfig) -> Result<Door, DoorError> {
    let (listener, address) = listen(FLAG, "see the state of the mesh", &config).await?;
    let token = Token::new(config.token.as_deref());
    let unauthenticated_peers = UnauthenticatedPeers::new();
    node.mesh().ports().add("unauthenticated peers at the web's door", &unauthenticated_peers);
    let pictures = watch::Sender::new(Arc::from(""));
    let (picture, metrics) = (Recent::default(), Recent::default());
    let serving = Arc::new(Serving {
        node,
        token,
        unauthenticated_peers,
        pictures,
        picture,
        metrics,
        looks: Looks::default(),
        log: Log::default(),
    });
    Ok(Door::new(address, async move {
        let mut drawing = JoinSet::new();
        drawing.spawn(draw(Arc::clone(&serving)));
        http::serve(serving, listener).await;
    }))
}

impl Serving {
    /// The mesh as JSON, less than `age` ago.
    async fn picture(&self, age: Duration) -> failure::Result<Arc<str>> {
        self.picture.get(age, async |_| Ok(picture::of(&self.node, &self.log).await.to_string().into())).await
    }

    /// The node as Prometheus reads it.
    ///
    /// # Errors
    /// If the node does not report its status.
    async fn metrics(&self) -> failure::Result<Arc<str>> {
        let text = async |_| {
            let (status, runs) = tokio::try_join!(self.node.status(None), self.node.runs(None))?;
            Ok(metrics::text(&status, &runs, &Process::own()).into())
        };
        self.metrics.get(EVERY, text).await
    }
}

/// Makes pictures as long as a page follows.
async fn draw(serving: Arc<Serving>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if serving.pictures.receiver_count() > 0 {
            // A picture of the last tick is too old, even if that came late.
            if let Ok(picture) = serving.picture(EVERY / 2).await {
                let _nobody = serving.pictures.send(picture);
            }
        }
    }
}
