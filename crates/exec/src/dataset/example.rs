//! Datasets of the features of serialised examples.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshtf_graph::{Attr, Attrs};
use meshtf_kernels::{self as kernel, HostKernel, Inputs, KernelNode};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::{Dataset, Element, Parts, pulled, tensors};
use crate::token::{Boxed, Token};

/// The wanted features of each example.
pub(crate) struct Features {
    pub sparse: Vec<(Vec<u8>, DType)>,
    pub dense: Vec<(Vec<u8>, DType, PartialShape)>,
    /// A default for each dense feature.
    pub defaults: Vec<Tensor>,
}

/// The features of each element, which is a batch of serialised examples, in the order of their keys. A sparse feature is an
/// array of its indices, values and shape. Reports the number of features and values of each example, under the name of the
/// node.
///
/// # Errors
/// InvalidArgument if two features have one key, or the statements about a feature contradict each other.
pub(crate) fn features(input: Arc<Dataset>, features: Features, name: String) -> Result<Parts> {
    let keys = features.sparse.iter().map(|(key, _)| key).chain(features.dense.iter().map(|(key, ..)| key));
    let mut order = BTreeMap::new();
    for (place, key) in keys.enumerate() {
        if order.insert(key.clone(), place).is_some() {
            let key = String::from_utf8_lossy(key);
            return Err(Failure::invalid(format!("Duplicate key not allowed: {key}")));
        }
    }
    let order: Vec<usize> = order.into_values().collect();
    // Errors that need no example are found now.
    features.of(&mut features.kernel()?, Tensor::vector(Vec::<Vec<u8>>::new()))?;
    let features = Arc::new(features);
    Ok(Parts::new(input.cardinality, move |pull| {
        let (features, order, mut kernel) = (Arc::clone(&features), order.clone(), features.kernel()?);
        let names = ["features_count", "feature_values_count"].map(|what| format!("{name}::{what}"));
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(element) = input.next(pull)? else { return Ok(None) };
            let mut texts: Vec<Vec<u8>> = Vec::new();
            for tensor in tensors(element)? {
                texts.extend_from_slice(tensor.slice::<Vec<u8>>()?);
            }
            if let Some(statistics) = pull.statistics {
                for text in &texts {
                    let counts = kernel::count_features(text, |key| features.wants(key))?;
                    for (name, count) in names.iter().zip(counts) {
                        statistics.add(name, count as f64)?;
                    }
                }
            }
            let mut made = features.of(&mut kernel, Tensor::vector(texts))?;
            let taken = order.iter().map(|&place| made.get_mut(place).and_then(Option::take));
            let missing = || Failure::new(Code::Internal, "a feature is missing");
            taken.collect::<Option<Element>>().ok_or_else(missing).map(Some)
        })
    }))
}

impl Features {
    fn wants(&self, key: &[u8]) -> bool {
        self.sparse.iter().any(|(own, _)| own == key) || self.dense.iter().any(|(own, ..)| own == key)
    }

    /// The kernel of ParseExample.
    fn kernel(&self) -> Result<HostKernel> {
        let attrs = Attrs::from([
            ("Nsparse", Attr::Int(self.sparse.len() as i64)),
            ("Ndense", Attr::Int(self.dense.len() as i64)),
            ("sparse_types", Attr::Types(self.sparse.iter().map(|(_, dtype)| *dtype).collect())),
            ("Tdense", Attr::Types(self.dense.iter().map(|(_, dtype, _)| *dtype).collect())),
            ("dense_shapes", Attr::Shapes(self.dense.iter().map(|(.., shape)| shape.clone()).collect())),
        ]);
        let node = KernelNode { name: "", op: "ParseExample", attrs: &attrs, inputs: &[], outputs: &[], constants: 0 };
        kernel::compile(&node)?.ok_or_else(|| Failure::new(Code::Internal, "ParseExample has no kernel"))
    }

    /// The features of some examples: the sparse ones, then the dense ones.
    fn of(&self, kernel: &mut HostKernel, examples: Tensor) -> Result<Vec<Option<Token>>> {
        let keys = self.sparse.iter().map(|(key, _)| key).chain(self.dense.iter().map(|(key, ..)| key));
        let mut inputs = Inputs::from_iter([examples, Tensor::vector(Vec::<Vec<u8>>::new())]);
        inputs.extend(keys.map(|key| Tensor::scalar(key.clone())));
        inputs.extend(self.defaults.iter().cloned());
        let made = kernel(inputs)?;
        let count = self.sparse.len();
        let mut all = Vec::with_capacity(count + self.dense.len());
        for i in 0..count {
            let parts = [i, count + i, 2 * count + i].map(|place| Token::from(made[place].clone()));
            all.push(Some(Boxed::new(Shape::from([3]), parts.to_vec())?.into()));
        }
        all.extend(made.into_iter().skip(3 * count).map(|tensor| Some(tensor.into())));
        Ok(all)
    }
}
