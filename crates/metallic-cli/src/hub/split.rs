//! Models split into several GGUF files: `x-00001-of-00004.gguf` and its siblings are one model.

use std::collections::BTreeMap;

use super::choose::{Offer, file_name};

/// What the name of one part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// The path up to `-00001-of-00004.gguf`.
    pub(super) stem: &'a str,
    /// From 1 on.
    pub(super) number: u32,
    pub(super) total: u32,
}

impl<'a> Part<'a> {
    /// `None` for a file that is a model of its own.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let (rest, total) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (number, total) = (five(number)?, five(total)?);
        ((1..=total).contains(&number) && total > 1).then_some(Self { stem, number, total })
    }

    /// The path of another part.
    pub(super) fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.total)
    }

    /// Whether `file`, a path or a name, is a part of the same model.
    pub(super) fn belongs_with(&self, file: &str) -> bool {
        Part::of(file).is_some_and(|other| {
            let same = other.stem == self.stem || other.stem == file_name(self.stem);
            same && other.total == self.total
        })
    }
}

/// A model in one file or in several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Model<'a> {
    /// By number; a model in one file has it as number 1.
    parts: BTreeMap<u32, Offer<'a>>,
    total: u32,
}

impl<'a> Model<'a> {
    /// The first file, by which a model is named and opened.
    pub(super) fn path(&self) -> &'a str {
        self.parts.values().next().map_or("", |offer| offer.path)
    }

    pub(super) fn files(&self) -> Vec<&'a str> {
        self.parts.values().map(|offer| offer.path).collect()
    }

    pub(super) fn found(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn is_whole(&self) -> bool {
        self.parts.len() == self.total as usize
    }

    pub(super) fn bytes(&self) -> Option<u64> {
        self.parts.values().try_fold(0_u64, |sum, offer| sum.checked_add(offer.bytes?))
    }
}

/// The models that these files make, whole or not, by name.
pub(super) fn models<'o, 'a: 'o>(offers: impl Iterator<Item = &'o Offer<'a>>) -> Vec<Model<'a>> {
    let mut found: BTreeMap<(&str, u32), Model<'a>> = BTreeMap::new();
    for offer in offers {
        let part = Part::of(offer.path);
        let (name, number, total) =
            part.map_or((offer.path, 1, 1), |part| (part.stem, part.number, part.total));
        let model = found.entry((name, total)).or_insert_with(|| Model { parts: BTreeMap::new(), total });
        // A listing that names a file twice means the first.
        model.parts.entry(number).or_insert(*offer);
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_usual_form_are_parts() {
        assert_eq!(Part::of("a/x-00002-of-00003.gguf"), Some(Part { stem: "a/x", number: 2, total: 3 }));
        for path in [
            "x-00004-of-00003.gguf",
            "x-00000-of-00003.gguf",
            "x-1-of-3.gguf",
            "x-00001-of-00001.gguf",
            "x-+0001-of-00003.gguf",
            "x.gguf",
            "x-00001-of-00003.gguf.part",
        ] {
            assert_eq!(Part::of(path), None, "{path}");
        }
    }

    #[test]
    fn parts_are_put_in_order_and_counted() {
        let offer = |path, bytes| Offer { path, bytes: Some(bytes) };
        let offers = [
            offer("x-00002-of-00002.gguf", 5),
            offer("y.gguf", 1),
            offer("x-00001-of-00002.gguf", 7),
            offer("y.gguf", 9),
        ];
        let found = models(offers.iter());
        assert_eq!(found[0].files(), ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]);
        assert_eq!((found[0].bytes(), found[0].is_whole()), (Some(12), true));
        assert_eq!((found[1].path(), found[1].bytes()), ("y.gguf", Some(1)));
        assert!(!models(offers[..1].iter())[0].is_whole());
    }
}
