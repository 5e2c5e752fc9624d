//! Attention layers.

use super::Value;

/// The longest sequence whose causal mask is made.
const MAX_CAUSAL: usize = 4096;

impl Value {
    /// Scaled dot-product attention: this, `[..., queries, width]`, looks up `values`, `[..., keys, outputs]`, by `keys`,
    /// `[..., keys, width]`: softmax(q · kᵀ / √width + mask) · v, of shape `[..., queries, outputs]`. A mask is broadcast to
    /// `[..., queries, keys]`; a large negative number hides a key.
    pub fn attend(&self, keys: &Value, values: &Value, mask: Option<&Value>) -> Value {
        let Some(sizes) = self.sizes("attend", 2) else { return self.clone() };
        let width = sizes.last().copied().flatten().unwrap_or(1);
        let mut scores = self.matmul_transposed(keys) * (1.0 / (width as f64).sqrt());
        if let Some(mask) = mask {
            scores = scores + mask;
        }
        scores.softmax().matmul(values)
    }

    /// Attention of `[n, time, width]` to itself with several heads, whose outputs go through a dense layer. With `causal`, a
    /// position attends only to itself and those before it, and there may be 4096. Layers `NAME/query`, `NAME/key`, `NAME/value`
    /// and `NAME/output`.
    pub fn self_attention(&self, name: &str, heads: usize, causal: bool) -> Value {
        let Some(sizes) = self.sizes("self_attention", 3) else { return self.clone() };
        let (time, width) = (sizes[1].unwrap_or(1), sizes[2].unwrap_or(1));
        if heads == 0 || !width.is_multiple_of(heads) || sizes.len() != 3 {
            let why = format!("self_attention {name}: {heads} heads do not divide a width of {width} evenly");
            return self.model.refuse(why);
        }
        if causal && time > MAX_CAUSAL {
            let why = format!("self_attention {name}: {time} positions; with causal, there may be {MAX_CAUSAL}");
            return self.model.refuse(why);
        }
        self.model.scope(name, || {
            let by_head = |part: &str| {
                let all = self.dense(part, width);
                all.reshape(&[-1, time as i32, heads as i32, (width / heads) as i32]).transpose(&[0, 2, 1, 3])
            };
            let (queries, keys, values) = (by_head("query"), by_head("key"), by_head("value"));
            let mask = causal.then(|| self.model.constant(causal_mask(time)));
            let seen = queries.attend(&keys, &values, mask.as_ref());
            let joined = seen.transpose(&[0, 2, 1, 3]).reshape(&[-1, time as i32, width as i32]);
            joined.dense("output", width)
        })
    }
}

/// The mask that is added to the scores of `[queries, keys]`, so that no position attends to a later one.
fn causal_mask(time: usize) -> meshtf_tensor::Tensor {
    let score = |i: usize| if i % time > i / time { -1e9f32 } else { 0.0 };
    meshtf_tensor::Tensor::from_vec([time, time], (0..time * time).map(score).collect())
}
