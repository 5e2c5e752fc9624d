//! The graph of a session, which grows: by nodes of the caller, and by those that access variables.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use meshtf::graph::{Attr, NodeDef, ProgramFile};
use meshtf::{Code, Failure, Init, Session};

use crate::graph::variables;

/// The nodes that a session has. One caller adds nodes at a time, so that none is added twice.
pub struct Growth {
    /// The graph with its defaults.
    file: Mutex<Arc<ProgramFile>>,
    /// The nodes that were added for access to variables.
    access: Mutex<Vec<Access>>,
    adding: tokio::sync::Mutex<Adding>,
}

#[derive(Default)]
struct Adding {
    /// Nodes beside those of the graph, which check whether variables have values.
    checks: HashSet<String>,
    /// Nodes that give variables their first values, and have not run.
    due: Vec<String>,
}

/// The nodes that read and set a variable.
#[derive(Clone)]
pub struct Access {
    variable: String,
    /// The tensor that reads it.
    pub read: String,
    /// The placeholder of a new value, and its dtype.
    pub value: String,
    pub dtype: String,
    /// The node that assigns it.
    pub assign: String,
}

impl Growth {
    pub fn of(file: Arc<ProgramFile>) -> Growth {
        Growth { file: Mutex::new(file), access: Mutex::default(), adding: tokio::sync::Mutex::default() }
    }

    pub fn file(&self) -> Arc<ProgramFile> {
        Arc::clone(&self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The nodes that access a variable, if they were added.
    pub fn access(&self, name: &str) -> Option<Access> {
        let all = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|one| one.variable == name).cloned()
    }

    /// Adds the nodes that access a variable, unless another caller has done so.
    pub async fn add_access(&self, session: &Session, name: &str) -> meshtf::Result<Access> {
        let _adding = self.adding.lock().await;
        if let Some(access) = self.access(name) {
            return Ok(access);
        }
        let (access, nodes) = self.nodes_for(name)?;
        session.extend(nodes).await?;
        self.access.lock().unwrap_or_else(PoisonError::into_inner).push(access.clone());
        Ok(access)
    }

    /// Adds the nodes of a graph that has grown since, and gives new variables their first values if none of them has one.
    pub async fn extend(&self, session: &Session, grown: Arc<ProgramFile>) -> meshtf::Result<()> {
        let mut adding = self.adding.lock().await;
        let known = self.file();
        // Those that initialize the new variables.
        let is_new = |name: &&String| known.graph.find(name).is_none();
        let init = grown.init.iter().filter_map(|name| grown.graph.find(name)).map(|id| grown.graph.node(id));
        let parts = init.flat_map(|node| &node.control).map(|&id| &grown.graph.node(id).name);
        for fresh in parts.filter(is_new) {
            if !adding.due.contains(fresh) {
                adding.due.push(fresh.clone());
            }
        }
        // Another caller may have added those of a later state of the graph.
        let due: Vec<String> = adding.due.iter().filter(|name| grown.graph.find(name).is_some()).cloned().collect();
        let (whole, init) = Init::of(grown.graph.clone(), &due);
        let mut nodes = whole.to_defs();
        nodes.retain(|node| is_new(&&node.name) && !adding.checks.contains(&node.name));
        if !nodes.is_empty() {
            let checks: Vec<String> =
                nodes.iter().map(|node| node.name.clone()).filter(|name| grown.graph.find(name).is_none()).collect();
            session.extend(nodes).await?;
            adding.checks.extend(checks);
            *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&grown);
        }
        if !due.is_empty() && init.is_due(session).await? {
            session.run().feeds(&grown.feed).targets(&due).await?;
        }
        adding.due.retain(|name| !due.contains(name));
        Ok(())
    }

    fn nodes_for(&self, name: &str) -> meshtf::Result<(Access, Vec<NodeDef>)> {
        let file = self.file();
        let graph = &file.graph;
        let all = variables(graph);
        let made = all.iter().find(|(own, node)| own == name || node == name);
        let node = made.and_then(|(_, node)| graph.find(node)).map(|id| graph.node(id)).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|(own, _)| own.as_str()).collect();
            let known = match known.len() {
                0 => "it has none".to_owned(),
                count if count > 16 => format!("it has {count}, among them {}", known[..8].join(", ")),
                _ => format!("it has {}", known.join(", ")),
            };
            Failure::new(Code::NotFound, format!("the graph has no variable {name}; {known}"))
        })?;
        let dtype = node.attrs.dtype("dtype")?;
        let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
        let (is_ref, handle) = (node.outputs[0].is_ref, node.name.clone());
        let free = |wanted: String| {
            let names = std::iter::once(wanted.clone()).chain((1..).map(move |n| format!("{wanted}_{n}")));
            names.into_iter().find(|name| graph.find(name).is_none()).unwrap_or_default()
        };
        let (read, value, assign) =
            (free(format!("_read/{name}")), free(format!("_value/{name}")), free(format!("_assign/{name}")));
        let def = |name: &str, op: &str, inputs: Vec<String>, attrs: Vec<(&str, Attr)>| NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            inputs,
            attrs: attrs.into_iter().fold(Default::default(), |mut all: meshtf::graph::Attrs, (name, value)| {
                all.set(name, value);
                all
            }),
            ..NodeDef::default()
        };
        let (reads, assigns) = if is_ref { ("Identity", "Assign") } else { ("ReadVariableOp", "AssignVariableOp") };
        let kind = if is_ref { "T" } else { "dtype" };
        let nodes = vec![
            def(&read, reads, vec![handle.clone()], vec![(kind, dtype.into())]),
            def(&value, "Placeholder", Vec::new(), vec![("dtype", dtype.into()), ("shape", shape.into())]),
            def(&assign, assigns, vec![handle, value.clone()], vec![(kind, dtype.into())]),
        ];
        let access = Access { variable: name.to_owned(), read, value, dtype: dtype.name().to_owned(), assign };
        Ok((access, nodes))
    }
}
