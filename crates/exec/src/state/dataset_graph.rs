//! Datasets as graphs: the nodes that made them, as a GraphDef, for programs that inspect it.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_engine::Engine;
use meshtf_graph::{Attr, Attrs, FROM_WORKING_FOLDER, NodeDef, graphdef};
use meshtf_kernels::KernelNode;
use meshtf_kernels::call::check_text_bytes;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::Dataset;
use super::super::token::{Token, Variant};
use super::named::Site;
use super::op::{StateOp, one, simple};

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    match node.op {
        "DatasetToGraph" | "DatasetToGraphV2" => simple(|mut inputs, _| {
            let dataset = inputs.dataset(0)?;
            let mut writer = Writer::default();
            let input = writer.dataset(&dataset)?;
            let attrs = Attrs::from([("T", Attr::Type(DType::Variant)), ("index", Attr::Int(0))]);
            let inputs = vec![input];
            writer.nodes.push(NodeDef::on("", "dataset".into(), "_Retval", inputs, attrs));
            let bytes = graphdef::to_binary(&writer.nodes);
            check_text_bytes(bytes.len())?;
            Ok(one(Tensor::scalar(bytes)))
        }),
        _ => Ok(None),
    }
}

#[derive(Default)]
struct Writer {
    nodes: Vec<NodeDef>,
    /// The names of the datasets that were written, by their addresses.
    written: HashMap<usize, String>,
    /// Bytes of the constants.
    bytes: usize,
}

impl Writer {
    /// Writes a dataset after its inputs; returns its name. The limit on nested datasets bounds the recursion.
    fn dataset(&mut self, dataset: &Arc<Dataset>) -> Result<String> {
        let place = Arc::as_ptr(dataset) as usize;
        if let Some(name) = self.written.get(&place) {
            return Ok(name.clone());
        }
        let statement = dataset.statement().ok_or_else(|| {
            Failure::new(Code::Unimplemented, "a dataset that is an element of another cannot be written as a graph")
        })?;
        let inputs = dataset.held().iter().map(|token| self.input(token)).collect::<Result<_>>()?;
        let mut attrs = statement.attrs.clone();
        attrs.0.remove(FROM_WORKING_FOLDER);
        let name = self.name(&statement.op);
        self.nodes.push(NodeDef::on("", name.clone(), &statement.op, inputs, attrs));
        self.written.insert(place, name.clone());
        Ok(name)
    }

    fn input(&mut self, token: &Token) -> Result<String> {
        match token {
            Token::Variant(Variant::Dataset(dataset)) => self.dataset(dataset),
            Token::Resource(_) | Token::Variant(_) => {
                let dtype = if matches!(token, Token::Variant(_)) { DType::Variant } else { DType::Resource };
                let name = self.name("Placeholder");
                let attrs = Attrs::from([("dtype", Attr::Type(dtype))]);
                self.nodes.push(NodeDef::on("", name.clone(), "Placeholder", Vec::new(), attrs));
                Ok(name)
            }
            Token::Value(_) | Token::Ref(_) => {
                let tensor = token.clone().host()?;
                self.bytes = self.bytes.saturating_add(tensor.byte_len());
                check_text_bytes(self.bytes)?;
                let name = self.name("Const");
                self.nodes.push(NodeDef::constant(name.clone(), String::new(), Attr::Tensor(tensor)));
                Ok(name)
            }
        }
    }

    fn name(&self, op: &str) -> String {
        format!("{op}/_{}", self.nodes.len())
    }
}
