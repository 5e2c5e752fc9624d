//! Values that are not tensors: lists, optionals (some values or none) and ragged tensors; with recursive zeros and sums.

pub(super) mod list;
pub(super) mod map;

use std::sync::Arc;

use meshtf_engine::Value;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::sums::add;
use map::TensorMap;

use super::token::{Boxed, Optional, RaggedValue, Token, Variant};

/// Zeros of the same shape, recursively.
pub(super) fn zeros(token: Token) -> Result<Token> {
    match token {
        Token::Variant(Variant::List(list)) => Arc::unwrap_or_clone(list).map(zeros).map(Token::from),
        Token::Variant(Variant::Boxed(boxed)) if boxed.is_ragged() => {
            let items = boxed.items().iter().cloned().map(zeros).collect::<Result<_>>()?;
            Boxed::new(boxed.shape.clone(), items).map(Token::from)
        }
        Token::Variant(Variant::Boxed(boxed)) if let Some(dtype) = boxed.number().map(Value::dtype) => {
            let zero = Tensor::zeros(dtype, Shape::scalar())?;
            Boxed::new(Shape::scalar(), vec![zero.into()]).map(Token::from)
        }
        Token::Variant(Variant::Ragged(ragged)) => {
            let (splits, values) = ragged.split_off()?;
            Ok(RaggedValue::new(splits, Tensor::zeros(values.dtype(), values.shape().clone())?).into())
        }
        // As TensorFlow has it: a map without an entry stands for zeros in a sum.
        Token::Variant(Variant::Map(_)) => Ok(TensorMap::default().into()),
        Token::Variant(it @ (Variant::Dataset(_) | Variant::Boxed(_) | Variant::Lock(_))) => {
            Err(Failure::invalid(format!("there are no zeros of the form of {}", it.kind())))
        }
        Token::Variant(Variant::Optional(it)) => {
            let values = it.values.as_ref();
            let zeros = values.map(|values| values.iter().cloned().map(zeros).collect::<Result<_>>()).transpose()?;
            Optional::new(zeros).map(Token::from)
        }
        other => {
            let value = other.value()?;
            Ok(Tensor::zeros(value.dtype(), value.shape().clone())?.into())
        }
    }
}

/// The sum of two values of one form, recursively.
pub(super) fn sum(a: Token, b: Token) -> Result<Token> {
    match (a, b) {
        (Token::Variant(Variant::List(a)), Token::Variant(Variant::List(b))) => {
            Arc::unwrap_or_clone(a).plus(Arc::unwrap_or_clone(b), sum).map(Token::from)
        }
        (Token::Variant(Variant::Optional(a)), Token::Variant(Variant::Optional(b))) => match (&a.values, &b.values) {
            (Some(x), Some(y)) if x.len() == y.len() => {
                let sums = x.iter().zip(y).map(|(x, y)| sum(x.clone(), y.clone())).collect::<Result<_>>()?;
                Optional::new(Some(sums)).map(Token::from)
            }
            (None, None) => Optional::new(None).map(Token::from),
            _ => Err(Failure::invalid("Cannot add optionals that hold different numbers of values.")),
        },
        (Token::Variant(Variant::Boxed(a)), Token::Variant(Variant::Boxed(b)))
            if a.is_ragged() && b.is_ragged() && a.shape == b.shape || a.number().is_some() && b.number().is_some() =>
        {
            let sums = a.items().iter().zip(b.items()).map(|(a, b)| sum(a.clone(), b.clone()));
            Boxed::new(a.shape.clone(), sums.collect::<Result<_>>()?).map(Token::from)
        }
        (Token::Variant(Variant::Map(a)), Token::Variant(Variant::Map(b))) => {
            Arc::unwrap_or_clone(a).plus(&b).map(Token::from)
        }
        (Token::Variant(Variant::Ragged(a)), Token::Variant(Variant::Ragged(b))) => {
            let ((splits, a), (_, b)) = (a.split_off()?, b.split_off()?);
            Ok(RaggedValue::new(splits, sum(a.into(), b.into())?.host()?).into())
        }
        (a, b) => {
            let (a, b): (Value, Value) = (a.value()?, b.value()?);
            if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
                let why =
                    format!("Cannot add {} of shape {} to {} of shape {}", b.dtype(), b.shape(), a.dtype(), a.shape());
                return Err(Failure::invalid(why));
            }
            let mut sum = a.into_host()?;
            add(&mut sum, &b.into_host()?)?;
            Ok(sum.into())
        }
    }
}
