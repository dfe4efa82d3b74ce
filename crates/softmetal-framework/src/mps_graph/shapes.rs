//! Shapes of results, as the operations document them.

use crate::problem::{Rule, refuse};

/// The shape of two operands that are broadcast from their last axes on.
pub(crate) fn broadcast(a: &[usize], b: &[usize], what: &str) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let axis = |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let both = |at: usize| match (axis(a, at), axis(b, at)) {
        (a, b) if a == b || b == 1 => a,
        (1, b) => b,
        _ => {
            refuse(
                Rule::Descriptor,
                format!("{what} of {a:?} and {b:?}: MPSGraph asserts that they are broadcast"),
            );
            0
        }
    };
    (0..rank).map(both).collect()
}

/// The shape of a product over the last two axes.
pub(crate) fn product(a: &[usize], b: &[usize]) -> Vec<usize> {
    if let ([outer @ .., m, k], [others @ .., also_k, n]) = (a, b)
        && k == also_k
    {
        return [broadcast(outer, others, "matrixMultiplication"), vec![*m, *n]].concat();
    }
    refuse(Rule::Descriptor, format!("the product of {a:?} and {b:?}: MPSGraph asserts equal inner axes"));
    Vec::new()
}

/// Where the element of a broadcast operand is that stands behind element `index` of a result.
pub(crate) fn source(index: usize, shape: &[usize], of: &[usize]) -> usize {
    let (mut rest, mut at, mut stride) = (index, 0, 1);
    for back in 1..=shape.len() {
        let axis = shape[shape.len() - back];
        let place = rest % axis;
        rest /= axis;
        if let Some(own) = of.len().checked_sub(back).map(|own| of[own]) {
            at += if own == 1 { 0 } else { place * stride };
            stride *= own;
        }
    }
    at
}

/// The place of an element on each axis.
pub(crate) fn places(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut places = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        places[axis] = index % shape[axis];
        index /= shape[axis];
    }
    places
}

/// The element at a place.
pub(crate) fn index(places: &[usize], shape: &[usize]) -> usize {
    places.iter().zip(shape).fold(0, |index, (place, axis)| index * axis + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_broadcast_from_the_last_axis_on() {
        assert_eq!(broadcast(&[3, 1], &[2, 1, 4], "add"), [2, 3, 4]);
        assert_eq!(product(&[2, 3, 4], &[4, 5]), [2, 3, 5]);
        assert!(std::panic::catch_unwind(|| broadcast(&[3], &[2], "add")).is_err());
        assert!(std::panic::catch_unwind(|| product(&[2, 3], &[2, 3])).is_err());
        let shape = [2, 3, 4];
        for at in 0..24 {
            let own = places(at, &shape);
            assert_eq!(index(&own, &shape), at);
            assert_eq!(source(at, &shape, &[3, 1]), own[1]);
            assert_eq!(source(at, &shape, &[2, 1, 4]), own[0] * 4 + own[2]);
        }
    }
}
