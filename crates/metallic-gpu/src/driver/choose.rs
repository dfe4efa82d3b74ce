//! Which of several GPUs is meant.

use crate::error::GpuError;

/// The GPU asked for: by its index, its name or a part of the name that only one has; the default one where nothing is
/// said.
pub(crate) fn device(
    asked: Option<&str>,
    names: &[String],
    default: Option<usize>,
) -> Result<usize, GpuError> {
    let none = |asked: &str| GpuError::NoDevice {
        asked: asked.to_owned(),
        known: names.iter().enumerate().map(|(i, name)| format!("{i}: {name}")).collect(),
    };
    let Some(asked) = asked.map(str::trim) else {
        let first = default.filter(|i| *i < names.len()).or_else(|| (!names.is_empty()).then_some(0));
        return first.ok_or_else(|| none("the default one"));
    };
    if let Ok(index) = asked.parse::<usize>() {
        return if index < names.len() { Ok(index) } else { Err(none(asked)) };
    }
    let wanted = asked.to_lowercase();
    let by = |fits: &dyn Fn(&str) -> bool| {
        let mut found = (0..names.len()).filter(|i| fits(&names[*i].to_lowercase()));
        found.next().filter(|_| found.next().is_none())
    };
    by(&|name| name == wanted)
        .or_else(|| by(&|name| !wanted.is_empty() && name.contains(&wanted)))
        .ok_or_else(|| none(asked))
}

/// Simdgroups a core needs to hide its memory.
pub(crate) const SIMDGROUPS_PER_CORE: u32 = 48;

/// Simdgroups that keep a GPU busy, by its name: Metal does not tell how many cores it has, and within a grade they
/// differ by a third at most. Too many or too few costs a little time.
pub(crate) fn busy_simdgroups(name: &str) -> u32 {
    let cores = match name.trim().rsplit(' ').next() {
        Some("Ultra") => 64,
        Some("Max") => 36,
        Some("Pro") => 18,
        _ => 10,
    };
    cores * SIMDGROUPS_PER_CORE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["AMD Radeon Pro 5500M", "Apple M2 Max", "Apple M2"].map(String::from).to_vec()
    }

    #[test]
    fn a_gpu_is_chosen_by_index_by_name_and_by_a_part_of_its_name() {
        for (asked, found) in [
            (None, 2),
            (Some("0"), 0),
            (Some(" 1 "), 1),
            (Some("apple m2"), 2),
            (Some("Max"), 1),
            (Some("radeon"), 0),
        ] {
            assert_eq!(device(asked, &names(), Some(2)), Ok(found), "{asked:?}");
        }
        assert_eq!(device(None, &names(), None), Ok(0), "without a default the first one");
        assert_eq!(device(None, &names(), Some(9)), Ok(0));
    }

    #[test]
    fn a_larger_gpu_is_kept_busy_by_more() {
        let found = ["Apple M1", "Apple M3 Pro", "Apple M2 Max", "Apple M1 Ultra", ""].map(busy_simdgroups);
        assert_eq!(found, [480, 864, 1728, 3072, 480]);
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_refused_with_what_there_is() {
        for asked in ["3", "-1", "Apple", "Intel", ""] {
            let error = device(Some(asked), &names(), Some(0)).unwrap_err();
            assert!(error.to_string().contains("1: Apple M2 Max"), "{error}");
        }
        let error = device(None, &[], None).unwrap_err();
        assert!(error.to_string().contains("is none"), "{error}");
    }
}
