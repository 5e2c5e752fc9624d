//! The files that are on the workers, and their content: each worker is queried before the training is prepared.

use std::collections::BTreeMap;

use meshtf_graph::{Attr, Attrs, Graph, NodeDef};
use meshtf_tensor::device::Task;
use meshtf_tensor::npy::Head;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_train::file::{Sections, Take};
use meshtf_train::job::homes;

use super::Error;
use crate::Session;

/// Bytes that are fetched of a file first: most headers have 128.
const FIRST: i64 = 1 << 10;
/// Bytes in which a longer header is searched.
const MOST: i64 = 1 << 17;

/// Queries the workers for the files of a section `data` that they have.
///
/// ```
/// use meshtf::graph::Graph;
/// use meshtf::train::{Found, Lookup, Optimizer, Sections, Training};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// async fn found(client: &impl Client, sections: &Sections, graph: &Graph) -> meshtf::Result<Found> {
///     let Some(lookup) = Lookup::of(sections, graph)? else { return Ok(Found::default()) };
///     let (graph, options) = (lookup.graph().clone(), SessionOptions::default());
///     let session = client.session(graph, lookup.tasks().first(), options).await?;
///     Ok(lookup.ask(&session).await?)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// // Sections whose files are all here.
/// let sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.01), 32);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// found(&cluster, &sections, &Graph::default()).await?;
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Lookup {
    graph: Graph,
    /// The files, and for each the tensors of its beginning and its length on each worker, with the worker's device, and that of
    /// the length of its beginning.
    files: Vec<(String, Vec<Asked>)>,
}

#[derive(Debug)]
struct Asked {
    device: String,
    most: String,
    start: String,
    length: String,
}

/// The workers' files of a section, for [`load`](super::load).
///
/// ```
/// use meshtf::model::Model;
/// use meshtf::tensor::DType;
/// use meshtf::train::{DataSource, Found, Optimizer, Sections, Take, Training, load};
///
/// let m = Model::new();
/// m.placeholder("x", DType::F32, [None, Some(2)]);
/// let source = DataSource { file: "part.npy".into(), take: Take::WorkerFile, ..DataSource::default() };
/// let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.01), 32);
/// sections.data.feed = vec![("x".into(), source)];
/// // Without the result of a lookup, files on the workers are unknown.
/// let error = load(&sections, &m.finish()?, ".".as_ref(), &Found::default()).unwrap_err();
/// assert_eq!(error.to_string(), "data for x: part.npy: the workers were not asked for it");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Debug, Default)]
pub struct Found(pub(super) BTreeMap<String, Head>);

impl Lookup {
    /// The lookup for the sections, if one of their files is on the workers. The graph is the model's.
    ///
    /// # Errors
    /// [`Error::Sections`] for a device that cannot be read.
    pub fn of(sections: &Sections, graph: &Graph) -> Result<Option<Lookup>, Error> {
        let there = sections.data.feed.iter().filter(|(_, source)| source.take == Take::WorkerFile);
        let mut names: Vec<&str> = there.map(|(_, source)| source.file.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(None);
        }
        let first = sections.data.feed.first().map_or("", |(name, _)| name.as_str());
        let homes = homes(graph, &sections.train, first).map_err(|failure| Error::Sections(failure.message))?;
        let (mut defs, mut files) = (Vec::new(), Vec::with_capacity(names.len()));
        for (f, file) in names.into_iter().enumerate() {
            let mut asked = Vec::with_capacity(homes.len());
            for (i, device) in homes.iter().enumerate() {
                let own = format!("file_{f}/worker_{i}");
                defs.extend(header(&own, device, file));
                let [most, start, length] = ["most", "start", "bytes"].map(|part| format!("{own}/{part}"));
                asked.push(Asked { device: device.clone(), most, start, length });
            }
            files.push((file.to_owned(), asked));
        }
        Ok(Some(Lookup { graph: Graph::new(defs)?, files }))
    }

    /// The graph of the session for [`ask`](Lookup::ask).
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The workers that are queried.
    pub fn tasks(&self) -> Vec<Task> {
        self.graph.tasks()
    }

    /// Queries them, in a session on [`graph`](Lookup::graph).
    ///
    /// # Errors
    /// [`Error::Input`], with the file and the worker: the file does not exist below the worker's folder, is no .npy file with
    /// contiguous examples, or has another shape or dtype than on the first worker. [`Error::Failed`] if a worker cannot be
    /// reached.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, nothing has changed.
    pub async fn ask(&self, session: &Session) -> Result<Found, Error> {
        let mut found = BTreeMap::new();
        for (file, asked) in &self.files {
            let mut first: Option<(&str, Head)> = None;
            for asked in asked {
                let device = &asked.device;
                let whose = if device.is_empty() { "the worker" } else { device.as_str() };
                let at = |why: &dyn std::fmt::Display| Error::input(format!("{file} on {whose}: {why}"));
                let head = async |most: i64| {
                    let run = session.run().feed(&asked.most, most).fetch(&asked.start).fetch(&asked.length);
                    let values = run.await.map_err(|failure| match failure.node {
                        Some(_) => at(&format!(
                            "{}; it is looked for below the folder of `meshtf node --data`",
                            failure.message
                        )),
                        None => failure.into(),
                    })?;
                    let (start, length) = (values[0].item::<Vec<u8>>()?, values[1].to_i64()?);
                    let length = u64::try_from(length).map_err(|_| at(&"it is larger than a worker can read"))?;
                    let is_whole = start.len() as u64 == length;
                    Ok::<_, Error>((is_whole, Head::read(&start, length)))
                };
                let head = match head(FIRST).await? {
                    // The header may be longer.
                    (false, Err(_)) => head(MOST).await?.1,
                    (_, head) => head,
                };
                let head = head.map_err(|failure| at(&failure.message))?;
                let head = head.ok_or_else(|| at(&"it is not a .npy file of examples in C order"))?;
                match &first {
                    None => first = Some((whose, head)),
                    Some((other, known)) if *known != head => {
                        let said = |head: &Head| {
                            let dtype =
                                head.elements().map_or_else(|| "text".to_owned(), |(dtype, _)| dtype.to_string());
                            format!("{dtype}{}", Shape::from(head.shape().to_vec()))
                        };
                        return Err(at(&format!("it is {}, and on {other} it is {}", said(&head), said(known))));
                    }
                    Some(_) => {}
                }
            }
            found.extend(first.map(|(_, head)| (file.clone(), head)));
        }
        Ok(Found(found))
    }
}

/// The nodes that return the beginning of a file, and its length.
fn header(own: &str, device: &str, file: &str) -> Vec<NodeDef> {
    let name = |part: &str| format!("{own}/{part}");
    let node =
        |part: &str, op: &str, inputs: Vec<String>, attrs: Attrs| NodeDef::on(device, name(part), op, inputs, attrs);
    let constant = |part: &str, value: Tensor| NodeDef::constant(name(part), device.to_owned(), Attr::Tensor(value));
    vec![
        constant("name", Tensor::scalar(file.as_bytes().to_vec())),
        node("whole", "ReadFile", vec![name("name")], Attrs::default()),
        constant("begin", Tensor::scalar(0i64)),
        constant("most", Tensor::scalar(FIRST)),
        node(
            "start",
            "Substr",
            vec![name("whole"), name("begin"), name("most")],
            Attrs::from([("T", DType::I64.into())]),
        ),
        node("bytes", "StringLength", vec![name("whole")], Attrs::default()),
    ]
}
