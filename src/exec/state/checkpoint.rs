//! The ops that save and restore: they touch the disk, in the folder that the task was given.

use super::super::engine::Engine;
use super::super::kernel::{KernelNode, checkpoint};
use super::named::Site;
use super::op::{StateOp, simple};
use crate::failure::Result;

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let Some(mut kernel) = checkpoint::on_disk(node, site.resources.data())? else { return Ok(None) };
    simple(move |mut inputs, _| {
        let outputs = kernel(inputs.rest(0)?.into())?;
        Ok(outputs.into_iter().map(|tensor| Some(tensor.into())).collect())
    })
}
