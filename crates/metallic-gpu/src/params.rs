//! Params of a kernel are declared once, in Rust, and printed into the MSL: the two languages cannot drift.

use metallic_core::plan::Number;

pub(crate) const MAX_PARAMS: usize = 128;

/// The params of one launch, as the kernel sees them at buffer index 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Params {
    bytes: [u8; MAX_PARAMS],
    len: usize,
    /// Their declaration in the MSL; empty where they have none.
    declared: &'static str,
}

impl std::fmt::Debug for Params {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.as_bytes().chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        f.debug_list().entries(words).finish()
    }
}

impl Params {
    pub(crate) fn of_words<const N: usize>(words: [u32; N]) -> Params {
        const { assert!(N * 4 <= MAX_PARAMS, "params are too long") };
        let mut bytes = [0; MAX_PARAMS];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        Params { bytes, len: N * 4, declared: "" }
    }

    /// The same, as this struct of the MSL.
    pub(crate) fn declared(self, declared: &'static str) -> Params {
        Params { declared, ..self }
    }

    /// Each with its name, as far as they are declared.
    pub(crate) fn fields(&self) -> Vec<(String, Number)> {
        let (_, fields) = self.declared.split_once('{').unwrap_or_default();
        let fields = fields.split(';').filter_map(|field| field.trim().split_once(' '));
        let words = self.as_bytes().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let named = |((ty, name), word): ((&str, &str), [u8; 4])| {
            let number = match ty {
                "float" => Number::Float(f32::from_ne_bytes(word)),
                _ => Number::Whole(u32::from_ne_bytes(word)),
            };
            (name.to_owned(), number)
        };
        fields.zip(words).map(named).collect()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

macro_rules! msl_type {
    (u32) => {
        "uint"
    };
    (f32) => {
        "float"
    };
}

/// Declares params structs and their MSL twins: fields are `u32` or `f32`.
macro_rules! kernel_params {
    ($($(#[$doc:meta])* $name:ident { $($field:ident : $ty:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),+ }

        impl $name {
            pub(crate) const MSL: &'static str = concat!(
                "struct ", stringify!($name), " {", $(" ", $crate::params::msl_type!($ty), " ", stringify!($field), ";",)+ " };\n"
            );

            /// The words, in the order of the fields.
            #[allow(dead_code)] // What lies in a buffer is declared for its MSL, and compared in tests alone.
            pub(crate) fn params(self) -> $crate::params::Params {
                let words = [$(u32::from_ne_bytes(self.$field.to_ne_bytes())),+];
                $crate::params::Params::of_words(words).declared(Self::MSL)
            }
        }
    )+};
}

pub(crate) use {kernel_params, msl_type};

#[cfg(test)]
mod tests {
    use super::*;

    kernel_params! {
        /// For the test.
        Sample { rows: u32, eps: f32 }
    }

    #[test]
    fn a_declaration_prints_its_msl_and_its_words() {
        assert_eq!(Sample::MSL, "struct Sample { uint rows; float eps; };\n");
        let params = Sample { rows: 3, eps: 1.0 }.params();
        assert_eq!(params.as_bytes(), [3u32.to_ne_bytes(), 1f32.to_ne_bytes()].concat());
        let fields = [("rows".to_owned(), Number::Whole(3)), ("eps".to_owned(), Number::Float(1.0))];
        assert_eq!(params.fields(), fields);
        assert_eq!(Params::of_words([7]).fields(), [], "nobody has declared it");
    }
}
