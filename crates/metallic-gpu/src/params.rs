//! Params of a kernel are declared once, in Rust, and printed into the MSL: the two languages cannot drift.

pub(crate) const MAX_PARAMS: usize = 128;

/// The params of one launch, as the kernel sees them at buffer index 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Params {
    bytes: [u8; MAX_PARAMS],
    len: usize,
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
        Params { bytes, len: N * 4 }
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
                $crate::params::Params::of_words([$(u32::from_ne_bytes(self.$field.to_ne_bytes())),+])
            }
        }
    )+};
}

pub(crate) use {kernel_params, msl_type};

#[cfg(test)]
mod tests {
    kernel_params! {
        /// For the test.
        Sample { rows: u32, eps: f32 }
    }

    #[test]
    fn a_declaration_prints_its_msl_and_its_words() {
        assert_eq!(Sample::MSL, "struct Sample { uint rows; float eps; };\n");
        let params = Sample { rows: 3, eps: 1.0 }.params();
        assert_eq!(params.as_bytes(), [3u32.to_ne_bytes(), 1f32.to_ne_bytes()].concat());
    }
}
