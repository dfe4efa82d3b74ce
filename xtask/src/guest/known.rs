//! Guests of which more is known than their names.

/// A crate of somebody else's.
pub(super) struct Guest {
    pub(super) name: &'static str,
    /// What is changed beside what every guest needs: file, text, its replacement.
    pub(super) changes: &'static [(&'static str, &'static str, &'static str)],
    /// Files in which a Mac means other things than Metal: there Linux stays Linux.
    pub(super) kept: &'static [&'static str],
    /// Tests that fail, and why they must.
    pub(super) failing: &'static [(&'static str, &'static str)],
}

pub(super) const GUESTS: &[Guest] = &[CANDLE_KERNELS, CANDLE_CORE];

/// Its tests on Metal: `--features metal --test metal`.
const CANDLE_CORE: Guest = Guest { name: "candle-core", changes: &[], kept: &["src/utils.rs"], failing: &[] };

const CANDLE_KERNELS: Guest = Guest {
    name: "candle-metal-kernels",
    changes: &[],
    kept: &[],
    failing: &[(
        "tests::gelu_f16",
        // tanh(1.880859375) = 0.954568, as a half 0.954590 = 1955/2048. One more than that lies exactly between the halfs
        // 1.954102 and 1.955078, and goes to the even one. Fast mathematics leave tanh a float: 1.954568 is nearer to 1.954102.
        "the number expected at 2 is that of fast mathematics, which do not round tanh to a half before they add one",
    )],
};
