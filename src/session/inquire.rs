//! Requests to a node that need no session: its status, its resources, its events, and the values of its variables.

use std::sync::Arc;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{Incarnation, SessionId};

use super::unexpected;
use crate::protocol::cached::CacheStatus;
use crate::protocol::copies::{AskCopies, Mark, ToldCopies};
use crate::protocol::event::Noted;
use crate::protocol::inquiry::{Answer, Inquiry, VariableName};
use crate::protocol::look::SessionLook;
use crate::protocol::runs::{Report, RunsStatus};
use crate::protocol::status::{NodeStatus, ResourceStatus};
use crate::protocol::{Peer, Reply};
use crate::runtime::requests::Requests;

pub(super) async fn ask(
    client: &Arc<Requests>,
    node: &Peer,
    inquiry: Inquiry,
    tensors: Vec<Tensor>,
) -> Result<(Answer, Vec<Tensor>)> {
    match client.inquire(node, inquiry, tensors)?.answer().await? {
        (Reply::Told(answer), tensors) => Ok((answer, tensors)),
        (other, _) => Err(unexpected(&other)),
    }
}

fn other(answer: &Answer) -> Failure {
    Failure::new(Code::Internal, format!("unexpected answer from the node: {answer:?}"))
}

/// The status of a node.
pub(crate) async fn status(client: &Arc<Requests>, node: &Peer) -> Result<NodeStatus> {
    match ask(client, node, Inquiry::Status, Vec::new()).await? {
        (Answer::Status(status), _) => Ok(*status),
        (answer, _) => Err(other(&answer)),
    }
}

/// The state of one of a node's sessions, without the plan and the traced step that the client has already.
pub(crate) async fn look(
    client: &Arc<Requests>,
    node: &Peer,
    session: SessionId,
    plan: Option<u32>,
    traced: Option<u64>,
) -> Result<SessionLook> {
    match ask(client, node, Inquiry::Session { session, plan, traced }, Vec::new()).await? {
        (Answer::Session(look), _) => Ok(*look),
        (answer, _) => Err(other(&answer)),
    }
}

/// The runs of a node's sessions of which their clients report, and the time of steps.
pub(crate) async fn runs(client: &Arc<Requests>, node: &Peer) -> Result<RunsStatus> {
    match ask(client, node, Inquiry::Runs, Vec::new()).await? {
        (Answer::Runs(runs), _) => Ok(*runs),
        (answer, _) => Err(other(&answer)),
    }
}

/// The weights that a node keeps on its disk.
pub(crate) async fn cache(client: &Arc<Requests>, node: &Peer) -> Result<CacheStatus> {
    match ask(client, node, Inquiry::Cache, Vec::new()).await? {
        (Answer::Cache(status), _) => Ok(*status),
        (answer, _) => Err(other(&answer)),
    }
}

/// Reports on a run of a session whose master the node is.
pub(crate) async fn report(client: &Arc<Requests>, node: &Peer, report: Report) -> Result<()> {
    match ask(client, node, Inquiry::Report(Box::new(report)), Vec::new()).await? {
        (Answer::Reported, _) => Ok(()),
        (answer, _) => Err(other(&answer)),
    }
}

/// Asks a node about its copies of the variables of a task.
pub(crate) async fn copies(
    client: &Arc<Requests>,
    node: &Peer,
    what: AskCopies,
    tensors: Vec<Tensor>,
) -> Result<(ToldCopies, Vec<Tensor>)> {
    match ask(client, node, Inquiry::Copies(what), tensors).await? {
        (Answer::Copies(told), tensors) => Ok((told, tensors)),
        (answer, _) => Err(other(&answer)),
    }
}

/// Sets a mark on the variables of a node, if it is this process; whether it is.
pub(crate) async fn set_mark(client: &Arc<Requests>, node: &Peer, process: Incarnation, mark: Mark) -> Result<bool> {
    told_mark(ask(client, node, Inquiry::SetMark { process, mark }, Vec::new()).await?.0)
}

/// Whether the variables of a node have a mark.
pub(crate) async fn has_mark(client: &Arc<Requests>, node: &Peer, mark: Mark) -> Result<bool> {
    told_mark(ask(client, node, Inquiry::HasMark(mark), Vec::new()).await?.0)
}

fn told_mark(answer: Answer) -> Result<bool> {
    match answer {
        Answer::Mark(has) => Ok(has),
        answer => Err(other(&answer)),
    }
}

/// All resources of a node.
pub(crate) async fn resources(client: &Arc<Requests>, node: &Peer) -> Result<Vec<ResourceStatus>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        match ask(client, node, Inquiry::Resources { after }, Vec::new()).await? {
            (Answer::Resources { page, next, .. }, _) => {
                all.extend(page);
                if next.is_none() {
                    return Ok(all);
                }
                after = next;
            }
            (answer, _) => return Err(other(&answer)),
        }
    }
}

/// The next events of a node after the event of that number.
pub(crate) async fn events(client: &Arc<Requests>, node: &Peer, after: u64, steps: bool) -> Result<Vec<Noted>> {
    match ask(client, node, Inquiry::Events { after, steps }, Vec::new()).await? {
        (Answer::Events { events }, _) => Ok(events),
        (answer, _) => Err(other(&answer)),
    }
}

/// The value of a variable, and its version.
pub(crate) async fn read_variable(
    client: &Arc<Requests>,
    node: &Peer,
    variable: VariableName,
) -> Result<(Tensor, u64)> {
    let (answer, tensors) = ask(client, node, Inquiry::ReadVariable(variable), Vec::new()).await?;
    match (answer, tensors.into_iter().next()) {
        (Answer::Variable { version }, Some(value)) => Ok((value, version)),
        (answer, _) => Err(other(&answer)),
    }
}

/// Sets a variable, if it has the `expected` version; returns its new version.
pub(crate) async fn write_variable(
    client: &Arc<Requests>,
    node: &Peer,
    variable: VariableName,
    value: Tensor,
    expected: Option<u64>,
) -> Result<u64> {
    match ask(client, node, Inquiry::WriteVariable { variable, expected }, vec![value]).await? {
        (Answer::Written { version }, _) => Ok(version),
        (answer, _) => Err(other(&answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use crate::LocalCluster;
    use crate::protocol::SessionOptions;
    use crate::protocol::event::Event;
    use crate::protocol::inquiry::MAX_EVENTS;
    use crate::protocol::status::Listed;
    use crate::session::Session;
    use meshtf_engine::adapters::BackendChoice;
    use meshtf_graph::{Graph, read};
    use meshtf_tensor::device::{DeviceKind, Task};
    use meshtf_tensor::failure::Reason;

    /// A variable of a thousand numbers and a counter, a queue of pairs.
    const GRAPH: &str = r#"{ "version": 1, "nodes": {
      "w":     { "op": "VarHandleOp", "attrs": { "dtype": "float32", "shape": [1000] } },
      "zeros": { "op": "Fill", "inputs": [[1000], { "value": 0.0 }] },
      "zero":  { "op": "AssignVariableOp", "inputs": ["w", "zeros"] },
      "n":     { "op": "VarHandleOp", "attrs": { "dtype": "int64", "shape": [] } },
      "begin": { "op": "AssignVariableOp", "inputs": ["n", { "value": 0, "dtype": "int64" }] },
      "count": { "op": "AssignAddVariableOp", "inputs": ["n", { "value": 1, "dtype": "int64" }] },
      "q":     { "op": "FIFOQueueV2", "attrs": { "component_types": ["float32", "int64"], "shapes": [[], []], "shared_name": "q" } },
      "put":   { "op": "QueueEnqueueV2", "inputs": ["q", { "value": 1.5 }, { "value": 2, "dtype": "int64" }] },
      "init":  { "op": "NoOp", "control": ["zero", "begin"] } } }"#;

    fn task() -> Task {
        Task::new("local", 0)
    }

    fn cluster() -> LocalCluster {
        LocalCluster::start(&[task()], BackendChoice::Flex).unwrap()
    }

    async fn session(cluster: &LocalCluster, options: SessionOptions) -> Session {
        let graph = Graph::new(read(GRAPH.as_bytes()).unwrap().nodes).unwrap();
        cluster.session(graph, &task(), options).await.unwrap()
    }

    fn named(name: &str) -> VariableName {
        VariableName { name: name.to_owned(), ..VariableName::default() }
    }

    fn find<'a>(resources: &'a [ResourceStatus], name: &str) -> &'a ResourceStatus {
        resources.iter().find(|resource| resource.name == name).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_tells_what_it_did_and_holds() {
        let cluster = cluster();
        let idle = cluster.status(&task()).await.unwrap();
        assert_eq!(idle.identity.task, Some(task()));
        assert_eq!(idle.identity.incarnation, Some(cluster.cluster().member(&task()).unwrap().incarnation));
        assert_eq!((idle.sessions.total, idle.pieces.total, idle.resources.total), (0, 0, 0));
        assert_eq!((idle.peers.total, idle.identity.mesh), (0, None), "there is no network");
        assert!(idle.window_ms >= 250 && idle.window_ms < 60_000, "{}", idle.window_ms);

        let session = session(&cluster, SessionOptions::default()).await;
        session.run().target("init").await.unwrap();
        session.run().target("count").steps(25).await.unwrap();
        for _ in 0..3 {
            session.run().target("put").await.unwrap();
        }
        let status = cluster.status(&task()).await.unwrap();

        let [ours] = &status.sessions.items[..] else { panic!("{:?}", status.sessions) };
        // One of init, 25 that count, three that put elements into the queue: three plans, none of which runs now.
        assert_eq!((ours.steps, ours.plans, ours.runs), (29, 3, 0));
        assert_eq!(ours.client.as_str(), "local/0");
        let ran: Vec<u64> = status.pieces.items.iter().map(|piece| piece.steps).collect();
        assert_eq!((status.pieces.total, ran), (3, vec![25, 3, 1]));
        assert!(status.pieces.items.iter().all(|piece| piece.session == ours.id && piece.nodes > 0));

        let [cpu] = &status.devices.items[..] else { panic!("{:?}", status.devices) };
        assert_eq!((cpu.name.kind, cpu.backend.as_str(), cpu.sessions, cpu.pieces), (DeviceKind::Cpu, "flex", 1, 3));
        assert!(cpu.busy_us > 0 && (0.0..=1.0).contains(&cpu.busy_share), "{cpu:?}");
        assert_eq!((cpu.steps, cpu.parked_values, cpu.parked_bytes), (0, 0, 0));

        let Listed { items: resources, total } = &status.resources;
        assert_eq!((*total, resources[0].name.as_str()), (3, "w"), "the largest first");
        let w = find(resources, "w");
        assert_eq!((w.kind.as_str(), w.bytes, w.version, w.length), ("variable", Some(4000), Some(1), None));
        let n = find(resources, "n");
        assert_eq!((n.bytes, n.version), (Some(8), Some(26)), "one assignment and 25 updates");
        let q = find(resources, "q");
        // Each element is a float32 and an int64.
        assert_eq!((q.kind.as_str(), q.bytes, q.length, q.version), ("queue", Some(3 * 12), Some(3), None));
        assert!(resources.iter().all(|resource| resource.session == ours.id && !resource.is_isolated));

        let limit = |name: &str| status.limits.iter().find(|limit| limit.name == name).unwrap();
        assert_eq!((limit("sessions").used, limit("sessions").limit), (1, Some(4096)));
        assert_eq!(limit("plans of one session").used, 3);
        assert_eq!(limit("resources").used, 3);
        assert_eq!(limit("pieces of one device").used, 3);

        session.close().await.unwrap();
        let status = cluster.status(&task()).await.unwrap();
        assert_eq!((status.sessions.total, status.pieces.total, status.resources.total), (0, 0, 3));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_variable_is_read_and_set_by_name_and_version() {
        let cluster = cluster();
        let session = session(&cluster, SessionOptions::default()).await;
        session.run().target("init").await.unwrap();
        session.run().target("count").await.unwrap();
        let task = task();
        assert_eq!(cluster.read_variable(&task, named("n")).await.unwrap(), (Tensor::scalar(1i64), 2));
        let set = |value: Tensor, expected| cluster.write_variable(&task, named("n"), value, expected);
        assert_eq!(set(Tensor::scalar(40i64), Some(2)).await.unwrap(), 3);
        // A client that read it before that receives an error.
        let late = set(Tensor::scalar(50i64), Some(2)).await.unwrap_err();
        assert_eq!(late.code, Code::Aborted);
        assert!(late.message.contains("version 3"), "{late}");
        session.run().target("count").await.unwrap();
        assert_eq!(cluster.read_variable(&task, named("n")).await.unwrap(), (Tensor::scalar(41i64), 4));
        assert_eq!(set(Tensor::scalar(7i64), None).await.unwrap(), 5);
        // A value that it cannot hold changes nothing.
        for wrong in [Tensor::scalar(7i32), Tensor::vector(vec![7i64])] {
            assert_eq!(set(wrong, None).await.unwrap_err().code, Code::InvalidArgument);
        }
        assert_eq!(cluster.read_variable(&task, named("n")).await.unwrap(), (Tensor::scalar(7i64), 5));

        let code = async |variable| cluster.read_variable(&task, variable).await.unwrap_err().code;
        assert_eq!(code(named("nobody")).await, Code::NotFound);
        assert_eq!(code(VariableName { container: "other".into(), ..named("n") }).await, Code::NotFound);
        assert_eq!(
            code(VariableName { device: Some((DeviceKind::Cpu, 7)), ..named("n") }).await,
            Code::InvalidArgument
        );
        session.run().target("put").await.unwrap();
        assert_eq!(code(named("q")).await, Code::InvalidArgument);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn variables_of_an_isolated_session_are_listed_and_no_more() {
        let cluster = cluster();
        let options = SessionOptions { isolated: true, ..SessionOptions::default() };
        let session = session(&cluster, options).await;
        session.run().target("init").await.unwrap();
        let task = task();
        let listed = cluster.resources(&task).await.unwrap();
        assert!(find(&listed, "n").is_isolated && listed.len() == 2);
        let read = cluster.read_variable(&task, named("n")).await.unwrap_err();
        assert_eq!((read.code, read.reason), (Code::PermissionDenied, None::<Reason>));
        let set = cluster.write_variable(&task, named("n"), Tensor::scalar(1i64), None).await.unwrap_err();
        assert_eq!(set.code, Code::PermissionDenied);
        session.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn more_resources_than_a_page_are_all_listed_once() {
        const COUNT: usize = 600;
        let mut text = String::from(r#"{ "version": 1, "nodes": { "all": { "op": "NoOp", "control": ["a0""#);
        (1..COUNT).for_each(|n| text += &format!(r#", "a{n}""#));
        text += "] }";
        for n in 0..COUNT {
            text += &format!(
                r#", "v{n}": {{ "op": "VarHandleOp", "attrs": {{ "dtype": "int32", "shape": [] }} }},
                "a{n}": {{ "op": "AssignVariableOp", "inputs": ["v{n}", {n}] }}"#
            );
        }
        text += "} }";
        let cluster = cluster();
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let session = cluster.session(graph, &task(), SessionOptions::default()).await.unwrap();
        session.run().target("all").await.unwrap();
        let mut names: Vec<String> =
            cluster.resources(&task()).await.unwrap().into_iter().map(|resource| resource.name).collect();
        assert!(names.is_sorted());
        names.dedup();
        assert_eq!(names.len(), COUNT);
        // The status lists some, and the number of all.
        let resources = cluster.status(&task()).await.unwrap().resources;
        assert_eq!((resources.total, resources.items.len()), (600, crate::protocol::status::MAX_LISTED));
        assert_eq!(cluster.read_variable(&task(), named("v599")).await.unwrap(), (Tensor::scalar(599i32), 1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_asks_for_steps_hears_of_those_that_run_from_then_on() {
        let cluster = cluster();
        let session = session(&cluster, SessionOptions::default()).await;
        session.run().target("init").await.unwrap();
        let opened = cluster.events_of(&task(), 0, true).await.unwrap();
        assert_eq!(opened.iter().map(|noted| noted.event.name()).collect::<Vec<_>>(), ["session_opened"]);
        session.run().target("count").await.unwrap();
        let after = opened[0].number;
        let events = cluster.events_of(&task(), after, true).await.unwrap();
        let names: Vec<_> = events.iter().map(|noted| noted.event.name()).collect();
        assert_eq!(names, ["steps_begun", "steps_done"]);
        assert_eq!(cluster.events_of(&task(), after, false).await.unwrap(), []);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_follower_hears_of_sessions_and_steps() {
        let cluster = cluster();
        let mut follower = cluster.events(&task()).unwrap();
        let session = session(&cluster, SessionOptions::default()).await;
        session.run().target("init").await.unwrap();
        session.run().target("count").steps(100).await.unwrap();
        session.close().await.unwrap();
        let (mut names, mut begun, mut done) = (Vec::new(), 0, 0);
        while names.last() != Some(&"session_ended") {
            let noted = follower.next().await.unwrap();
            match noted.event {
                // The two runs count their steps from 1 each.
                Event::StepsBegun { first, count, .. } => {
                    assert!(first == 1 || first == begun, "{first}, {begun}");
                    begun = first + count;
                }
                Event::StepsDone { first, count, .. } => {
                    assert!(first == 1 || first == done, "{first}, {done}");
                    done = first + count;
                    assert!(done <= begun);
                }
                _ => {}
            }
            names.push(noted.event.name());
        }
        assert_eq!((names[0], begun, done), ("session_opened", 101, 101));
        assert_eq!(follower.missed(), 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_asks_later_hears_what_happened_and_nothing_of_steps() {
        let cluster = cluster();
        let names = async |after| -> Vec<(u64, &'static str)> {
            let events = cluster.events_of(&task(), after, false).await.unwrap();
            events.iter().map(|noted| (noted.number, noted.event.name())).collect()
        };
        assert_eq!(names(0).await, []);
        let session = session(&cluster, SessionOptions::default()).await;
        session.run().target("init").await.unwrap();
        assert_eq!(names(0).await, [(1, "session_opened")]);
        session.close().await.unwrap();
        assert_eq!(names(0).await, [(1, "session_opened"), (2, "session_ended")]);
        assert_eq!(names(1).await, [(2, "session_ended")]);
        assert_eq!(names(2).await, []);
        // A number beyond the last event is that of another process, which held the task before.
        assert_eq!(names(9).await.len(), 2);
        // Events that exceed one answer come in several, each once.
        for _ in 0..MAX_EVENTS {
            cluster.session(Graph::default(), &task(), SessionOptions::default()).await.unwrap().close().await.unwrap();
        }
        let (mut all, mut after) = (0, 0);
        while let events = names(after).await
            && let Some(&(last, _)) = events.last()
        {
            assert_eq!(
                events.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
                (after + 1..=last).collect::<Vec<_>>()
            );
            (all, after) = (all + events.len(), last);
        }
        assert_eq!(all, 2 + 2 * MAX_EVENTS);
        assert_eq!(cluster.events_of(&Task::new("local", 7), 0, false).await.unwrap_err().code, Code::NotFound);
    }
}
