//! Parameters of kernels that are there or not as a function constant says: `[[buffer(1), function_constant(has_bias)]]`.

use std::collections::{BTreeMap, BTreeSet};

const ATTRIBUTE: &str = "function_constant";

/// The constant of each such parameter, by its name, as a source has them. Where kernels have parameters of one name and different
/// constants, it is not known which is meant, and the name is left out.
pub(crate) fn of(source: &str) -> BTreeMap<String, String> {
    let (mut found, mut unclear) = (BTreeMap::new(), BTreeSet::new());
    for (start, _) in source.match_indices("[[") {
        let Some((name, constant)) = switch(source, start) else { continue };
        let before = found.insert(name.to_owned(), constant.to_owned());
        if before.is_some_and(|before| before != constant) {
            unclear.insert(name.to_owned());
        }
    }
    found.retain(|name, _| !unclear.contains(name));
    found
}

/// The parameter before the attributes at `start` and its constant, where they are those of an argument that has one.
fn switch(source: &str, start: usize) -> Option<(&str, &str)> {
    let attributes = &source[start + 2..];
    let attributes = &attributes[..attributes.find("]]")?];
    if !["buffer", "texture", "sampler"].iter().any(|kind| attributes.contains(&format!("{kind}("))) {
        return None;
    }
    let (_, argument) = attributes.split_once(ATTRIBUTE)?;
    let (constant, _) = argument.trim_start().strip_prefix('(')?.split_once(')')?;
    let before = source[..start].trim_end();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let name = before.rfind(|c| !is_part(c)).map_or(before, |last| {
        let width = before[last..].chars().next().map_or(1, char::len_utf8);
        &before[last + width..]
    });
    Some((name, constant.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_with_their_constants_and_constants_themselves_are_not() {
        let found = of("constant bool has_bias [[function_constant(0)]];
            kernel void k(device float* x [[buffer(0)]],
                          device const float *bias [[ buffer(1), function_constant( has_bias ) ]],
                          texture2d<float> t [[function_constant(has_t), texture(0)]],
                          device float* both [[buffer(2), function_constant(a)]]) {}
            kernel void l(device float* both [[buffer(2), function_constant(b)]]) {}");
        let found: Vec<_> = found.iter().map(|(name, constant)| (name.as_str(), constant.as_str())).collect();
        assert_eq!(found, [("bias", "has_bias"), ("t", "has_t")]);
        assert!(of("[[buffer(0), function_constant(x").is_empty());
        assert!(of("").is_empty());
    }
}
