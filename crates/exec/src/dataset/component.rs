//! The components of elements: tensors, and arrays of variants. Both have rows, and can be stacked.

use meshtf_engine::Value;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Shape, Tensor};

use super::Element;
use crate::rows;
use crate::token::{Boxed, Token, Variant};

/// The element with its tensors in the memory of this process.
///
/// # Errors
/// InvalidArgument if a component has no rows: a dataset, for example.
pub(crate) fn hosted(element: Element) -> Result<Element> {
    let one = |token: Token| match token {
        Token::Variant(Variant::Boxed(_)) => Ok(token),
        other => other.host().map(Token::from),
    };
    element.into_iter().map(one).collect()
}

/// The tensor of a component, once it is [`hosted`].
///
/// # Errors
/// InvalidArgument if it is not a tensor.
pub(super) fn tensor(token: &Token) -> Result<&Tensor> {
    match token {
        Token::Value(Value::Host(tensor)) => Ok(tensor),
        Token::Variant(variant) => Err(Failure::invalid(format!("expected a tensor, got a {}", variant.kind()))),
        _ => Err(Failure::invalid("expected a tensor in memory")),
    }
}

fn shape(token: &Token) -> Result<&Shape> {
    match token {
        Token::Variant(Variant::Boxed(boxed)) => Ok(&boxed.shape),
        other => tensor(other).map(Tensor::shape),
    }
}

/// The number of rows of each of some components.
///
/// # Errors
/// InvalidArgument if they differ, or one is a scalar.
pub(crate) fn rows_of(components: &[Token]) -> Result<usize> {
    let mut count = None;
    for component in components {
        let Some(&rows) = shape(component)?.dims().first() else {
            return Err(Failure::invalid("All components must be at least 1-dimensional"));
        };
        if *count.get_or_insert(rows) != rows {
            return Err(Failure::invalid("All components must have the same size in the 0th dimension"));
        }
    }
    count.ok_or_else(|| Failure::invalid("there is no component"))
}

/// Row `i` of each of some components.
pub(crate) fn row_of(components: &[Token], i: usize) -> Result<Element> {
    let one = |token: &Token| match token {
        Token::Variant(Variant::Boxed(boxed)) => {
            let shape = Shape::from(&boxed.shape.dims()[1..]);
            let size = shape.elements().unwrap_or(0);
            match &boxed.items()[i * size..][..size] {
                // An array of datasets contains datasets; one of ragged tensors contains arrays without dimensions.
                [item @ Token::Variant(Variant::Dataset(_))] if shape.rank() == 0 => Ok(item.clone()),
                items => Boxed::new(shape, items.to_vec()).map(Token::from),
            }
        }
        other => rows::row(tensor(other)?, i).map(Token::from),
    };
    components.iter().map(one).collect()
}

/// Component `i` of several elements, stacked.
///
/// # Errors
/// InvalidArgument if an element lacks it, or they differ in dtype or shape.
pub(crate) fn stacked(elements: &[Element], i: usize) -> Result<Token> {
    let [first, ..] = elements else { return Err(Failure::invalid("there is no element to stack")) };
    let (dtype, whole) = (super::dtype_of(&first[i]), shape(&first[i])?);
    let mut parts = Vec::with_capacity(elements.len());
    for (at, element) in elements.iter().enumerate() {
        let part = element.get(i).filter(|part| super::dtype_of(part) == dtype);
        let part = part.ok_or_else(|| Failure::invalid(format!("element {at} has no component {i} of {dtype}")))?;
        let own = shape(part)?;
        if own != whole {
            return Err(Failure::invalid(format!(
                "Cannot batch tensors with different shapes in component {i}. First element had shape {whole} and \
                 element {at} had shape {own}."
            )));
        }
        parts.push(part);
    }
    if let Token::Variant(_) = &first[i] {
        let shape: Shape = std::iter::once(parts.len()).chain(whole.dims().iter().copied()).collect();
        memory::admit(parts.len().saturating_mul(whole.elements().unwrap_or(0)).saturating_mul(size_of::<Token>()))?;
        let items = parts.into_iter().flat_map(|part| match part {
            Token::Variant(Variant::Boxed(boxed)) => boxed.items(),
            _ => &[],
        });
        return Boxed::new(shape, items.cloned().collect()).map(Token::from);
    }
    let tensors = parts.into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
    rows::stack(dtype, whole, &tensors).map(Token::from)
}
