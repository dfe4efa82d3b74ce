//! What plans may choose: sizes, splits and thresholds, as one table of numbers for each device. Every value of every field gives
//! the same results but for rounding, and none is less exact than the default.

mod built_in;
mod tuned;

use std::fmt;

use crate::error::GpuError;

pub use built_in::{Origin, built_in};
pub use tuned::{Tuned, TunedDevice, TuningSource};

/// One number of a [`Tuning`].
#[derive(Debug)]
pub struct Field {
    /// Its name in files and tables.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// What it may be, in order.
    pub values: &'static [u32],
    get: fn(&Tuning) -> u32,
    set: fn(&mut Tuning, u32),
}

/// Declares the fields of [`Tuning`]: what each is, its default, and the values it may take.
macro_rules! tuning {
    ($($(#[doc = $doc:literal])+ $name:ident: $default:literal of $values:expr;)+) => {
        /// The numbers that plans of a device go by. The default is what a GPU of a few cores wants.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Tuning {
            $($(#[doc = $doc])+ pub $name: u32,)+
        }

        impl Tuning {
            /// What plans go by where nothing is known of a device.
            pub const DEFAULT: Tuning = Tuning { $($name: $default),+ };

            /// Every field.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($name),
                about: concat!($($doc),+).trim_ascii(),
                values: &$values,
                get: |tuning| tuning.$name,
                set: |tuning, value| tuning.$name = value,
            }),+];
        }
    };
}

tuning! {
    /// Simdgroups that keep the device busy, in percent of what its driver takes for enough.
    busy: 100 of [25, 50, 100, 200, 400];
    /// Elements of a row (norms, softmax) for each thread, before the row gets another simdgroup.
    row_elements: 4 of [2, 4, 8, 16];
    /// Simdgroups of a threadgroup of matrix–vector products.
    matvec_simdgroups: 4 of [1, 2, 4, 8];
    /// Blocks of four rows of a matrix that a simdgroup takes at most, where the device is busy anyway.
    matvec_blocks: 8 of [1, 2, 4, 8];
    /// Simdgroups that have a core's threadgroup memory together in matrix–vector products, at most.
    matvec_sharing: 24 of [4, 8, 16, 24];
    /// Tokens of a step that go through matrix–vector products; more go by tiles.
    vector_tokens: 8 of [4, 8, 16, 32];
    /// Numbers of all tokens' vectors that threadgroups stage themselves, with weights in cells of few bits; more are laid out before.
    staged_numbers: 16384 of [1024, 6144, 12288, 16384, 24576, 49152];
    /// Simdgroups that a core has of matrix–vector products in cells.
    cell_simdgroups: 16 of [4, 8, 16];
    /// Threadgroups that these are of, of up to eight tokens: one works while another waits, but each has the vectors for itself.
    cell_groups: 1 of [1, 2, 4];
    /// Tokens of a step that go by the smallest tiles of cells.
    small_tile_tokens: 32 of [16, 32, 64];
    /// Largest tiles of cells that each core must get, else they are smaller.
    tile_rounds: 2 of [1, 2, 3, 4, 8];
    /// Tokens from which on a library's product does better than kernels of ours, where the device has one.
    library_tokens: 33 of [17, 33, 65, 129, 257];
    /// Cache blocks of 32 tokens that one threadgroup of attention goes through before a row is worth a second one.
    attention_reach: 32 of [4, 8, 16, 32, 64];
    /// Cache blocks of a threadgroup's part of a row at least.
    attention_span: 8 of [2, 4, 8, 16, 32];
    /// Simdgroups of a threadgroup of attention over few tokens at most.
    attention_simdgroups: 8 of [2, 4, 8];
    /// Threadgroups for each core up to which query heads with short rows go apart, and read their keys once more; 0: never.
    heads_apart: 0 of [0, 1, 2, 4];
    /// Tokens that query tiles of attention have on average at least, else tokens go row by row.
    query_rows: 8 of [8, 16, 32];
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning::DEFAULT
    }
}

impl Field {
    /// The field of this name.
    pub fn named(name: &str) -> Option<&'static Field> {
        Tuning::FIELDS.iter().find(|field| field.name == name)
    }

    /// Its value.
    pub fn of(&self, tuning: &Tuning) -> u32 {
        (self.get)(tuning)
    }

    /// The same numbers with another value of this field, which must be one that it may have.
    pub fn with(&self, tuning: &Tuning, value: u32) -> Result<Tuning, GpuError> {
        self.check(value)?;
        let mut changed = *tuning;
        (self.set)(&mut changed, value);
        Ok(changed)
    }

    fn check(&self, value: u32) -> Result<(), GpuError> {
        if self.values.contains(&value) {
            return Ok(());
        }
        Err(GpuError::Tuning { field: self.name, found: value, values: self.values })
    }
}

impl Tuning {
    /// Refuses a value that its field may not have.
    pub fn check(&self) -> Result<(), GpuError> {
        Tuning::FIELDS.iter().try_for_each(|field| field.check(field.of(self)))
    }

    /// The fields in which two differ.
    pub fn differing<'a>(&'a self, other: &'a Tuning) -> impl Iterator<Item = &'static Field> + 'a {
        Tuning::FIELDS.iter().filter(|field| field.of(self) != field.of(other))
    }
}

/// The fields that are not as by default: `cell_groups=2, busy=200`.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for field in self.differing(&Tuning::DEFAULT) {
            write!(f, "{between}{}={}", field.name, field.of(self))?;
            between = ", ";
        }
        if between.is_empty() { f.write_str("the defaults") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
