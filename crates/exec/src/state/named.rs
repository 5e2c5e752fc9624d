//! The lookup of a node's resource, by container and name.

use std::sync::Arc;

use meshtf_graph::Function;
use meshtf_kernels::files::Folder;
use meshtf_kernels::{Generators, KernelNode};
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::SessionId;

use super::super::dataset::Callee;
use super::super::resource::{Resource, ResourceKey, Resources, container_named};

/// The owner of a piece that is compiled.
pub(crate) struct Site {
    pub session: SessionId,
    pub device: (DeviceKind, u32),
    /// The device's whole name.
    pub place: Arc<str>,
    pub resources: Arc<Resources>,
    /// The state of the random ops of the session on this device.
    pub generators: Arc<Generators>,
    /// Makes a function in a node callable by its op.
    pub callee: fn(&Function, &Site) -> Arc<dyn Callee>,
}

impl Site {
    /// The folder of the files that a node names.
    pub(super) fn folder(&self, node: &KernelNode) -> Folder {
        Folder::of(node.op, node.attrs, self.resources.data())
    }

    /// The same, with its own random numbers.
    pub fn apart(&self) -> Site {
        Site {
            session: self.session,
            device: self.device,
            place: Arc::clone(&self.place),
            resources: Arc::clone(&self.resources),
            generators: Arc::default(),
            callee: self.callee,
        }
    }
}

/// The text of an attribute that a node may lack.
fn stated<'a>(node: &KernelNode<'a>, attr: &str) -> Result<&'a str> {
    node.attrs.get(attr).map_or(Ok(""), |_| node.attrs.str(attr))
}

/// Refuses names that TensorFlow refuses.
fn check_names(container: &str, shared: &str) -> Result<()> {
    let is_first = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let is_name = container.starts_with(is_first) && container.chars().all(|c| is_first(c) || c == '-' || c == '/');
    if !(container.is_empty() || is_name) {
        return Err(Failure::invalid(format!("container contains invalid characters: {container}")));
    }
    if shared.starts_with('_') {
        return Err(Failure::invalid(format!("shared_name cannot start with '_':{shared}")));
    }
    Ok(())
}

/// The resource that a node names: looked up when it is first used, and again when a resource was removed from the table.
pub(super) struct Named<R> {
    key: ResourceKey,
    session: SessionId,
    resources: Arc<Resources>,
    found: Option<(u64, Arc<R>)>,
}

impl<R: Resource> Named<R> {
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    pub fn new(node: &KernelNode, site: &Site) -> Result<Named<R>> {
        check_names(stated(node, "container")?, stated(node, "shared_name")?)?;
        Named::unchecked(node, site)
    }

    /// As [`Named::new`], with names that TensorFlow may refuse elsewhere.
    pub fn unchecked(node: &KernelNode, site: &Site) -> Result<Named<R>> {
        let container = container_named(stated(node, "container")?);
        let name = Some(stated(node, "shared_name")?).filter(|text| !text.is_empty()).unwrap_or(node.name);
        let key = ResourceKey {
            session: site.resources.is_isolated(site.session).then_some(site.session),
            device: site.device,
            container: container.to_owned(),
            name: name.to_owned(),
        };
        site.resources.names(site.session, &key);
        Ok(Named { key, session: site.session, resources: site.resources.clone(), found: None })
    }

    /// A resource that only its session sees, under a name that no node has.
    pub fn of_session(name: &str, site: &Site) -> Named<R> {
        let key = ResourceKey {
            session: Some(site.session),
            device: site.device,
            container: container_named("").to_owned(),
            name: format!("_{name}"),
        };
        Named { key, session: site.session, resources: site.resources.clone(), found: None }
    }

    /// As [`Named::new`]; if the node names no resource to be shared, only its session sees it.
    pub fn new_own(node: &KernelNode, site: &Site) -> Result<Named<R>> {
        let mut named = Named::new(node, site)?;
        let says = |name: &str| node.attrs.get(name).is_some();
        let is_named = says("shared_name") && !node.attrs.str("shared_name")?.is_empty();
        let by_node = says("use_node_name_sharing") && node.attrs.bool("use_node_name_sharing")?;
        if !is_named && !by_node {
            named.key.session = Some(site.session);
            site.resources.names(site.session, &named.key);
        }
        Ok(named)
    }

    /// # Errors
    /// InvalidArgument if a resource of another kind has the name; ResourceExhausted if the task holds too many resources.
    pub fn find(&mut self, make: impl FnOnce(&str) -> R) -> Result<Arc<R>> {
        let generation = self.resources.generation();
        match &self.found {
            Some((at, resource)) if *at == generation => Ok(Arc::clone(resource)),
            _ => {
                let make = || Ok(Arc::new(make(&self.key.name)) as Arc<dyn Resource>);
                let resource = self.resources.find_or_make(&self.key, self.session, make)?.typed()?;
                self.found = Some((generation, Arc::clone(&resource)));
                Ok(resource)
            }
        }
    }
}
