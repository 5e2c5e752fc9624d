//! Models as formulas.

/// The first value of a variable.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let scale = m.variable("scale", [2], Initializer::Ones);
/// let shift = m.variable("shift", [2], Initializer::Constant([-1f32, 3.0].into()));
/// let sum = (scale + shift).named("sum");
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(m.finish()?, None, SessionOptions::default()).await?;
/// session.run().target("init").await?;
/// assert_eq!(session.run().fetch(sum.name()).await?[0].slice::<f32>()?, [0.0, 4.0]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_train::Initializer;
/// A variable that is not as [`Model::variable`] makes them: of another dtype, on a device of its own, or not trained.
///
/// ```
/// use meshtf::model::{Initializer, Model, VariableSpec};
/// use meshtf::tensor::DType;
///
/// let m = Model::new();
/// let spec = VariableSpec::new("seen", [], Initializer::Zeros);
/// let seen = m.variable_of(&VariableSpec { dtype: DType::I64, trainable: false, ..spec });
/// assert_eq!((seen.name().as_str(), seen.dtype()), ("seen", DType::I64));
/// m.finish()?;
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::VariableSpec;
/// A model in Rust: its layers, its loss, the step that trains it. No call but [`finish`](Model::finish) fails: the first error
/// is kept until then.
///
/// ```
/// use meshtf::model::Model;
/// use meshtf::tensor::DType;
/// use meshtf::train::{Optimizer, Training};
///
/// let m = Model::new();
/// let x = m.placeholder("x", DType::F32, [None, Some(2)]);
/// let y = m.placeholder("y", DType::I32, [None]);
/// let logits = m.on("/job:worker/task:0", || x.dense("hidden", 8).tanh().dense("out", 3));
/// let loss = logits.sparse_cross_entropy(&y).mean().named("loss");
/// m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.01));
/// // A session runs `init` once, and then `train/step` with x and y fed.
/// let graph = m.finish()?;
/// assert!(graph.find("init").is_some() && graph.find("train/step").is_some());
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::model::Model;
/// The right side of an operator: a [`Value`] or a number. Only these implement it.
///
/// ```
/// use meshtf::model::{Model, Operand, Value};
/// use meshtf::tensor::DType;
///
/// fn between(x: &Value, low: impl Operand, high: impl Operand) -> Value {
///     x.maximum(low).minimum(high)
/// }
///
/// let m = Model::new();
/// let x = m.placeholder("x", DType::F32, [None]);
/// assert_eq!(between(&x, 0.0, &(&x * 2.0)).dtype(), DType::F32);
/// m.finish()?;
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::model::Operand;
/// The treatment of an image's border by a convolution or a pool, which decides the size of the result.
///
/// ```
/// use meshtf::model::{Model, Padding};
/// use meshtf::tensor::DType;
///
/// let m = Model::new();
/// let images = m.placeholder("images", DType::F32, [None, Some(28), Some(28), Some(1)]);
/// let same = images.max_pool(2, 2, Padding::Same);
/// let valid = images.conv("conv", 16, 3, 1, Padding::Valid);
/// assert_eq!(same.shape(), [None, Some(14), Some(14), Some(1)].into());
/// assert_eq!(valid.shape(), [None, Some(26), Some(26), Some(16)].into());
/// ```
#[doc(inline)]
pub use meshtf_train::model::Padding;
/// A formula: operators, functions and layers make values of values.
///
/// ```
/// use meshtf::model::Model;
/// use meshtf::tensor::{DType, Tensor};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let x = m.placeholder("x", DType::F32, [None, Some(2)]);
/// let norm = (&x * &x).sum_along(&[1], false).sqrt().named("norm");
/// assert_eq!(norm.shape(), [None].into());
///
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(m.finish()?, None, SessionOptions::default()).await?;
/// let ran = session.run().feed("x", [[3f32, 4.0], [0.0, -2.0]]).fetch(norm.name()).await?;
/// assert_eq!(ran[0], Tensor::from([5f32, 2.0]));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_train::model::Value;
