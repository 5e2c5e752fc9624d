//! The ops of mutexes, by which `tf.CriticalSection` runs one function at a time.

use super::super::resource::Mutex;
use super::super::token::{Token, Variant};
use super::named::Named;
use super::op::{Outcome, StateInputs, nothing, one, simple};
use super::registry::Registry;
use meshtf_tensor::failure::{Failure, Result};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("MutexV2", |node, site| {
        let mut named = Named::new_own(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(named.find(|name| Mutex::new(name.to_owned()))?))))
    });
    ops.insert("MutexLock", |_, _| {
        Ok(Box::new(|tokens, context| -> Result<Outcome> {
            let mutex = StateInputs(tokens).mutex(0)?;
            Ok(match mutex.clone().lock(context.waiter())? {
                Some(lock) => Outcome::Done(one(lock)),
                None => Outcome::Waits(mutex),
            })
        }))
    });
    ops.insert_call("ConsumeMutexLock", |mut inputs, _| match inputs.token(0)? {
        // The lock ends here, unless another op has it as well.
        Token::Variant(Variant::Lock(_)) => Ok(nothing()),
        _ => Err(Failure::invalid("Expected input to be a mutex lock, and it is none")),
    });
}
